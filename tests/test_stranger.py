"""The stranger's ``cachecore`` distribution is named by the import, and only when it is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachecore.stranger import stranger_distribution, warn_of_stranger


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch) -> Path:
    info = tmp_path / "cachecore-0.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cachecore\nVersion: 0.4.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_nothing_is_said_without_the_stranger(recwarn):
    warn_of_stranger()

    assert stranger_distribution() is None
    assert not recwarn.list


def test_the_stranger_is_found_with_its_version(stranger):
    found = stranger_distribution()

    assert found is not None
    assert found["version"] == "0.4.0"
    assert "python -m pip uninstall cachecore" in found["advice"]


@pytest.mark.parametrize("metadata", [b"", b"\xff\xfe\x00Name"], ids=["empty", "undecodable"])
def test_a_damaged_stranger_is_found_too(stranger, metadata):
    (stranger / "cachecore-0.4.0.dist-info" / "METADATA").write_bytes(metadata)

    found = stranger_distribution()

    assert found is not None
    assert "distribution 'cachecore' of an unknown version is installed" in found["advice"]


def test_the_import_names_the_stranger(stranger):
    root = str(Path(sys.modules["cachecore"].__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(stranger), root])}

    told = subprocess.run(
        [sys.executable, "-c", "import cachecore"], env=env, capture_output=True, text=True, check=False
    )

    assert told.returncode == 0
    assert "distribution 'cachecore' 0.4.0 is installed, a stranger's package" in told.stderr
