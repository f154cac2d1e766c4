"""Wheels and sdists hold exactly what they should, and nothing of a sibling's."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

pytestmark = pytest.mark.dists

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
PLUGIN_SDIST = {"CHANGELOG.md", "LICENSE", "README.md", "changes", "pyproject.toml", "src", "tests"}
CORE_SDIST = {"CHANGELOG.md", "LICENSE", "README.md", "cachecore", "pyproject.toml"}
ADDED_BY_HATCHLING = {".gitignore", "PKG-INFO"}


@dataclass(frozen=True)
class Built:
    """What one folder builds to: its project table and the files of both artefacts, as an installer sees them."""

    folder: Path
    project: dict[str, object]
    wheel: frozenset[str]
    sdist: frozenset[str]
    metadata: str
    entry_points: str

    @property
    def package(self) -> str:
        return "cachecore" if self.folder == ROOT else str(self.project["name"]).replace("-", "_")

    @property
    def source(self) -> Path:
        return ROOT if self.folder == ROOT else self.folder / "src"

    @property
    def dist_info(self) -> str:
        return f"{str(self.project['name']).replace('-', '_')}-{self.project['version']}.dist-info"


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda folder: "core" if folder == ROOT else folder.name)
def built(request, tmp_path_factory) -> Built:
    folder = request.param
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel_path,), (sdist_path,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel_path) as archive:
        wheel = frozenset(archive.namelist())
        read = {
            name.rpartition("/")[2]: archive.read(name).decode()
            for name in wheel
            if name.endswith(("/METADATA", "/entry_points.txt"))
        }
    with tarfile.open(sdist_path) as archive:
        sdist = frozenset(
            str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in archive if member.isfile()
        )
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return Built(folder, project, wheel, sdist, read["METADATA"], read.get("entry_points.txt", ""))


def package_files(built: Built) -> set[str]:
    """The package's files on disk, relative to what goes on ``sys.path``."""
    return {
        str(path.relative_to(built.source).as_posix())
        for path in (built.source / built.package).rglob("*")
        if path.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in path.parts[-3:])
    }


def test_wheel_is_the_package_and_nothing_else(built):
    outside = {name for name in built.wheel if not name.startswith(f"{built.dist_info}/")}

    assert outside == package_files(built)


def test_wheel_is_typed_and_licensed(built):
    assert f"{built.package}/py.typed" in built.wheel
    assert f"{built.dist_info}/licenses/LICENSE" in built.wheel


def test_wheel_metadata_matches_the_project(built):
    lines = built.metadata.splitlines()

    assert f"Name: {built.project['name']}" in lines
    assert f"Version: {built.project['version']}" in lines
    assert "License-Expression: Apache-2.0" in lines
    assert "Requires-Python: >=3.11" in lines
    assert len(built.metadata.partition("\n\n")[2].strip()) > 200, "the README is the distribution's front page"


def test_plugin_announces_itself(built):
    if built.folder == ROOT:
        assert "[cachecore]" not in built.entry_points
        assert "cachecore = cachecore.cli:main" in built.entry_points
        return
    entries = dict(built.project.get("entry-points", {}).get("cachecore", {}))
    for name, module in entries.items():
        assert f"{name} = {module}" in built.entry_points


def test_sdist_is_the_allowlist(built):
    allowed = (CORE_SDIST if built.folder == ROOT else PLUGIN_SDIST) | ADDED_BY_HATCHLING
    top = {name.partition("/")[0] for name in built.sdist}

    assert top <= allowed
    assert {"LICENSE", "README.md", "pyproject.toml"} <= top


def test_sdist_holds_no_sibling(built):
    prefix = "" if built.folder == ROOT else "src/"
    sources = {
        name.removeprefix(prefix) for name in built.sdist if name.startswith(f"{prefix}cachecore") and "/" in name
    }

    assert sources == package_files(built)
    assert not [name for name in built.sdist if "plugins/" in name or "__pycache__" in name]
