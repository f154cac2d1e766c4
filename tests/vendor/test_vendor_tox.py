"""The one line in a plugin's ``tox.ini`` that brings cachecore's environments; tox itself is lent."""

from __future__ import annotations

import ast
import configparser
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project(installed):
    """An environment with tox and the core, and a plugin as ``new-backend`` writes it."""
    if importlib.util.find_spec("tox") is None:
        pytest.skip("tox is not installed; `tox run -e vendor` has it")
    made = installed("cachecore-kv")
    made.cachecore("new-backend", "toy")
    return made


def tox(project, folder: str, *arguments: str) -> str:
    return project.run("-m", "tox", *arguments, in_folder=folder)


def told_of(project, *environments: str, folder: str = "cachecore-toy") -> list[dict[str, str]]:
    """What ``tox config`` tells of each, its lists with spaces between."""
    keys = ("deps", "commands", "package", "base_python")
    text = tox(project, folder, "config", "-e", ",".join(environments), "-k", *keys)
    return [
        {
            key: " ".join(value.split())
            for key, value in re.findall(r"^(\w+) =[ \n]((?:.+\n)(?:  .+\n)*)", section, re.MULTILINE)
        }
        for section in re.split(r"^\[testenv:.+\]$", text, flags=re.MULTILINE)[1:]
    ]


def test_the_line_is_one(project):
    parsed = configparser.ConfigParser()
    parsed.read(project.folder / "cachecore-toy" / "tox.ini")

    assert {name: dict(parsed[name]) for name in parsed.sections()} == {
        "tox": {"requires": "cachecore-kv~=0.1.0", "env_list": "conformance"}
    }


def test_a_cell_builds_the_wheel_and_runs_the_tests_beside_its_torch(project):
    cell, whatever_torch = told_of(project, "conformance-py312-torch28", "conformance")

    assert cell == {
        "deps": "cachecore-kv[testing]==0.1.0 numpy torch==2.8.*",
        "commands": "python -I -m pytest",
        "package": "wheel",
        "base_python": "py312",
    }
    assert whatever_torch["deps"] == "cachecore-kv[testing]==0.1.0 numpy"


def test_a_device_that_torch_has_not_can_be_simulated(project):
    project.cachecore("new-backend", "chip", "--device-type", "npu")

    keys = ("deps", "commands", "package", "extras", "set_env")
    told = tox(project, "cachecore-chip", "config", "-e", "conformance-sim", "-k", *keys)

    lines = [line.strip() for line in told.splitlines()]
    assert "cachecore-kv[testing]==0.1.0" in lines
    assert {"commands = python -I -m pytest", "package = wheel", "extras = sim", "CACHECORE_NPU_SIM=npu"} <= set(lines)


def test_every_cell_is_listed(project):
    listed = tox(project, "cachecore-toy", "list").split()

    assert len([name for name in listed if name.startswith("conformance-py3")]) == 3 * 10


def test_what_the_plugin_says_itself_goes_first(project):
    folder = project.folder / "own"
    folder.mkdir()
    (folder / "pyproject.toml").write_text((project.folder / "cachecore-toy" / "pyproject.toml").read_text("utf-8"))
    (folder / "tox.ini").write_text(
        "[tox]\nrequires = cachecore-kv\n[testenv:conformance]\ncommands = cachecore check toy {posargs}\n"
    )

    (told,) = told_of(project, "conformance", folder="own")

    assert told["commands"] == "cachecore check toy"
    assert told["deps"] == "cachecore-kv[testing]==0.1.0 numpy"


NO_PLUGINS = {
    "none": None,
    "no-plugin": '[project]\nname = "x"\n',
    "broken": "[[",
    "no-table": "project = 3\n",
    "no-entry-points": "[project]\nentry-points = 3\n",
}


@pytest.mark.parametrize("pyproject", NO_PLUGINS.values(), ids=NO_PLUGINS)
def test_a_project_that_is_no_plugin_gets_nothing(project, tmp_path, pyproject):
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(pyproject)
    (tmp_path / "tox.ini").write_text("[tox]\nenv_list = mine\n")

    assert "conformance" not in tox(project, str(tmp_path), "list")


def constants(path: Path) -> dict[str, tuple[str, ...]]:
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
    }


def test_the_matrix_is_the_one_that_cachecore_is_tested_with():
    ours = constants(ROOT / "cachecore" / "testing" / "tox_plugin.py")
    ini = configparser.ConfigParser(interpolation=None)
    ini.read(ROOT / "tox.ini", encoding="utf-8")

    label = re.search(r"matrix = py3\{([\d,]+)\}-\{torch-default,cpu\}-torch\{([\d,]+)\}", ini["tox"]["labels"])
    assert label is not None
    assert tuple(f"py3{minor}" for minor in label[1].split(",")) == ours["PYTHONS"]
    factors = {f"torch{series.replace('.', '')}": series for series in ours["TORCHES"]}
    assert [f"torch{digits}" for digits in label[2].split(",")] == list(factors)
    assert dict(re.findall(r"^(torch\d+): torch==([\d.]+)\.\*$", ini["testenv"]["deps"], re.MULTILINE)) == factors
    assert f"{','.join(factors)}: PIP_CONSTRAINT =\n" in ini["testenv"]["set_env"] + "\n"


def test_supported_pythons_are_the_classifiers():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    told = re.findall(r"Python :: 3\.(\d+)", text)
    assert (
        tuple(f"py3{minor}" for minor in told) == constants(ROOT / "cachecore" / "testing" / "tox_plugin.py")["PYTHONS"]
    )
