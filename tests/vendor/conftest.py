"""Plugins as a stranger has them: wheels of this checkout, installed into fresh virtual environments, no network.

What is no part of this repository (torch, pytest, pip itself) is lent by the environment that runs the tests.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "cachecore-kv": ROOT,
    "cachecore-torch-default": ROOT / "plugins" / "torch-default",
    "cachecore-cpu": ROOT / "plugins" / "cpu",
    "cachecore-npu-sim": ROOT / "plugins" / "npu-sim",
    "banded-layout": ROOT / "examples" / "out_of_tree" / "banded-layout",
    "host-memmove": ROOT / "examples" / "out_of_tree" / "host-memmove",
}


@pytest.fixture(scope="session")
def lent() -> dict[str, str]:
    """The environment variables of a shell that has torch and pip, but nothing of cachecore and no network."""
    folders = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    names = {str(one.name).lower().replace("_", "-") for one in importlib.metadata.distributions(path=folders)}
    if ours := sorted(name for name in names if name.startswith("cachecore")):
        pytest.skip(f"{', '.join(ours)} is installed here, and would be found first; `tox run -e vendor` has none")
    if missing := sorted({"torch", "pip", "hatchling", "pluggy", "importlib-metadata"} - names):
        pytest.skip(f"{', '.join(missing)} is not installed; `tox run -e vendor` has it")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CACHECORE_", "PIP_", "PYTEST_"))}
    return kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(folders),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture(scope="session")
def wheels(lent, tmp_path_factory) -> dict[str, Path]:
    """A wheel of each folder, by the distribution's name."""
    out = tmp_path_factory.mktemp("wheels")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir")
    ended([sys.executable, "-m", "pip", "wheel", *options, out, *FOLDERS.values()], lent)
    return {name: next(out.glob(f"{name.replace('-', '_')}-*.whl")) for name in FOLDERS}


class Environment:
    """A virtual environment with some wheels in it."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.variables = folder, variables

    def run(self, *arguments: object, expect: int = 0, in_folder: str = ".", **variables: str) -> str:
        """What ``python *arguments`` prints; it must exit with ``expect``."""
        command = [self.folder / "bin" / "python", *arguments]
        return ended(command, self.variables | variables, expect, cwd=self.folder / in_folder)

    def cachecore(self, *arguments: object, expect: int = 0, **variables: str) -> str:
        """What the command line prints; where it fails, what it says."""
        return self.run("-P", "-m", "cachecore", *arguments, expect=expect, **variables)


@pytest.fixture(scope="session")
def installed(lent, wheels, tmp_path_factory):
    """Make an environment with these distributions of this checkout, and whatever other wheels."""

    def make(*names: str | Path) -> Environment:
        folder = tmp_path_factory.mktemp("venv")
        ended([sys.executable, "-m", "venv", "--without-pip", folder], lent)
        made = Environment(folder, lent)
        made.run("-m", "pip", "install", "--quiet", "--no-deps", *(wheels.get(name, name) for name in names))
        return made

    return make


def ended(command: Sequence[object], variables: dict[str, str], expect: int = 0, cwd: Path | None = None) -> str:
    """Run a command that must exit with ``expect``; what it prints, and its errors where it fails."""
    done = subprocess.run(
        list(map(str, command)), env=variables, cwd=cwd, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == expect, f"{done.args} exits with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + (done.stderr if expect else "")
