"""What the meta-tests share: where the repository stands and how its files are read."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def modules() -> dict[str, ast.Module]:
    """The syntax tree of every module of the core, by dotted name below ``cachecore``."""
    package = ROOT / "cachecore"
    trees = {}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        trees[name.removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return trees


@pytest.fixture(scope="session")
def kept_files() -> tuple[Path, ...]:
    """Every file that is, or is about to be, under version control."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this is no git checkout: {error}")
    return tuple(path for name in sorted(set(listed)) if name and (path := ROOT / name).is_file())
