"""``cachecore new-backend``: what it writes, and that it writes all or nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from cachecore.cli import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["new-backend", *arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err.partition("error: ")[2].strip()


def test_it_writes_a_distribution(here, capsys):
    assert main(["new-backend", "my-chip", "--device-type", "npu"]) == 0

    project = tomllib.loads((here / "cachecore-my-chip" / "pyproject.toml").read_text())["project"]
    assert project["name"] == "cachecore-my-chip"
    assert project["entry-points"]["cachecore"] == {"my-chip": "cachecore_my_chip.plugin"}
    assert below(here / "cachecore-my-chip") == {
        ".gitignore",
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "src",
        "src/cachecore_my_chip",
        *(f"src/cachecore_my_chip/{name}.py" for name in ("__init__", "backend", "block_copy", "plugin", "policy")),
        "src/cachecore_my_chip/py.typed",
        "tests",
        "tests/test_conformance.py",
        "tests/test_plan.py",
        "tox.ini",
    }
    assert below(here) == {"cachecore-my-chip"} | {f"cachecore-my-chip/{p}" for p in below(here / "cachecore-my-chip")}
    out = capsys.readouterr().out
    assert out.startswith("wrote cachecore-my-chip: backend my-chip for device type npu, 13 files\n")
    assert "  cachecore check my-chip --device npu --report my-chip.json\n" in out


def test_every_file_is_filled_in(here):
    main(["new-backend", "my-chip", "--device-type", "npu"])

    folder = here / "cachecore-my-chip"
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()}
    assert not {name for name, text in sources.items() if "$" in text}
    defined = {
        node.name
        for name, text in sources.items()
        if name.endswith(".py")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    assert defined == {"MyChipPolicy", "MyChipBackend", "MyChipBlockCopy"}
    assert 'BackendInfo("my-chip", ("npu",), PRIORITY' in sources["plugin.py"]
    assert sources["LICENSE"] == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_it_asks_for_releases_of_this_series(here):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    major, minor, *_ = map(int, version.split("."))
    series = f">={major}.{minor},<{major}.{minor + 1}"

    main(["new-backend", "mine"])

    project = tomllib.loads((here / "cachecore-mine" / "pyproject.toml").read_text())["project"]
    ours = [line for line in project["dependencies"] if line.startswith("cachecore-")]
    assert ours == [f"cachecore-kv{series}", f"cachecore-torch-default{series}"]
    assert f"requires = cachecore-kv~={major}.{minor}.0\n" in (here / "cachecore-mine" / "tox.ini").read_text()


def test_it_says_that_torch_default_must_be_there(here, capsys):
    main(["new-backend", "mine"])

    told = capsys.readouterr().out.partition("next:\n")[2]
    assert told.index("cachecore-torch-default must be installed") < told.index("pip install . ./plugins/torch-default")
    assert told.index("pip install . ./plugins/torch-default") < told.index("pip install -e")
    assert not [path for path in here.rglob("*") if path.is_file() and "pypi.org" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize(("device", "can_be"), [("npu", True), ("mlu", True), ("cpu", False), ("cuda", False)])
def test_a_device_that_torch_has_not_can_be_simulated(here, capsys, device, can_be):
    main(["new-backend", "mine", "--device-type", device])

    folder, told = here / "cachecore-mine", capsys.readouterr().out
    extras = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.get("sim") == (["cachecore-npu-sim>=0.1,<0.2"] if can_be else None)
    for name in ("tox.ini", "README.md", "pyproject.toml"):
        text = (folder / name).read_text(encoding="utf-8")
        assert (f"CACHECORE_NPU_SIM{' = ' if name == 'tox.ini' else '='}{device}" in text) == can_be
        assert not text.startswith("\n")
        assert not text.endswith("\n\n")
    assert ("[testenv:conformance-sim]" in (folder / "tox.ini").read_text()) == can_be
    assert (f"CACHECORE_NPU_SIM={device} cachecore check mine --device {device}" in told) == can_be


def test_json_says_where_and_what(here, capsys):
    main(["new-backend", "mine", "--directory", "somewhere", "--json"])

    told = json.loads(capsys.readouterr().out)
    files = told.pop("files")
    assert told == {
        "name": "mine",
        "distribution": "cachecore-mine",
        "package": "cachecore_mine",
        "device_type": "cpu",
        "directory": "somewhere",
    }
    assert set(files) == {name for name in below(here / "somewhere") if (here / "somewhere" / name).is_file()}


@pytest.mark.parametrize("where", [".", "empty"], ids=["the-current-folder", "a-folder"])
def test_an_empty_folder_is_filled(here, where):
    (here / where).mkdir(exist_ok=True)

    assert main(["new-backend", "mine", "--directory", where]) == 0

    assert (here / where / "src" / "cachecore_mine" / "plugin.py").is_file()
    assert not [name for name in below(here) if name.startswith(".cachecore-")]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My_Chip", "'My_Chip' is no name of a backend; expected lowercase .*, such as my-chip$"),
        ("9", "'9' is no name .* at most 40$"),
        ("a" * 41, f"such as {'a' * 40}$"),
        ("../up", "'../up' is no name .*, such as up$"),
        ("a--b", "such as a-b$"),
        ("ünder", "such as nder$"),
        ("", "'' is no name"),
        ("cachecore-mine", "would become distribution 'cachecore-cachecore-mine'; say mine$"),
        ("kv", "'kv' is taken by cachecore itself; choose another, such as my-kv$"),
        ("cpu", "'cpu' is taken"),
    ],
)
def test_what_is_no_name_is_refused_with_one_that_is(here, capsys, name, told):
    message = " ".join(refused(capsys, name).split())

    assert re.search(told, message), message
    assert below(here) == set()


def test_every_plugin_of_this_repository_has_its_name_taken(here, capsys):
    for path in ROOT.glob("plugins/*/pyproject.toml"):
        assert "is taken by cachecore itself" in refused(capsys, path.parent.name)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("npu:0", "'npu:0' is one device; expected a type, such as npu"),
        ("null", "'null' is the core's own device"),
        ("NPU", "device 'NPU' is not understood"),
    ],
)
def test_what_is_no_device_type_is_refused(here, capsys, device, told):
    assert told in refused(capsys, "mine", "--device-type", device)
    assert below(here) == set()


def test_a_folder_with_something_in_it_is_left_alone(here, capsys):
    (here / "cachecore-mine").mkdir()
    (here / "cachecore-mine" / "work.py").write_text("mine")

    assert main(["new-backend", "mine"]) == 1

    assert capsys.readouterr().err == (
        "cachecore: error: cachecore-mine is there and not empty, and nothing is overwritten; "
        "name another folder with --directory, or remove it first\n"
    )
    assert below(here) == {"cachecore-mine", "cachecore-mine/work.py"}


def test_a_file_of_that_name_is_left_alone(here, capsys):
    (here / "cachecore-mine").write_text("mine")

    assert main(["new-backend", "mine"]) == 1
    assert "cachecore-mine is there and no folder" in capsys.readouterr().err


def test_a_folder_to_write_into_must_be_there(here, capsys):
    assert main(["new-backend", "mine", "--directory", "no/such"]) == 1
    assert "no is no folder to write 'such' into" in capsys.readouterr().err
    assert below(here) == set()


@pytest.mark.parametrize("into", [".", "empty", "new"])
def test_a_folder_that_cannot_be_written_is_named(here, capsys, monkeypatch, into):
    def refuse(path, *arguments, **options):
        raise PermissionError(13, "Permission denied", "elsewhere")

    monkeypatch.setattr(Path, "mkdir" if into == "new" else "rename", refuse)
    if into == "empty":
        (here / "empty").mkdir()

    assert main(["new-backend", "mine", "--directory", into]) == 1
    assert capsys.readouterr().err == (
        f"cachecore: error: {into} cannot be written: Permission denied; name another folder with --directory\n"
    )
    assert below(here) == ({"empty"} if into == "empty" else set())


def test_a_home_that_is_not_there_is_refused(here, capsys):
    assert "Name a folder without ~" in refused(capsys, "mine", "--directory", "~nobody-of-that-name/mine")


@pytest.mark.parametrize("folder", ["with space", 'a "b"', "$HOME", "`x`", "it's", "a\\b"])
def test_what_it_says_to_install_is_what_a_shell_reads(here, capsys, folder):
    main(["new-backend", "mine", "--directory", folder])

    line = next(line for line in capsys.readouterr().out.splitlines() if "pip install -e" in line)
    echo = subprocess.run(["sh", "-c", line.replace("python -m pip install -e", "printf %s")], stdout=-1, check=True)
    assert echo.stdout.decode() == f"./{folder}[testing]"


@pytest.mark.parametrize("call", [1, 5, 13])
@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device", "x")])
def test_an_interruption_while_writing_leaves_nothing(here, monkeypatch, call, fault):
    write_text = Path.write_text
    calls = []

    def write(path, *arguments, **options):
        calls.append(path)
        if len(calls) == call:
            raise fault
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", write)

    assert main(["new-backend", "mine"]) == (130 if fault is KeyboardInterrupt else 1)
    assert below(here) == set()


def test_an_interruption_while_filling_a_folder_leaves_it_empty(here, monkeypatch):
    (here / "cachecore-mine").mkdir()
    rename = Path.rename

    def interrupted(path, target):
        if path.name == "src":
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)

    assert main(["new-backend", "mine"]) == 130
    assert below(here) == {"cachecore-mine"}


def test_the_examples_of_its_help_parse(here, capsys):
    with pytest.raises(SystemExit):
        main(["new-backend", "--help"])
    lines = [line.split("   ")[0].split() for line in capsys.readouterr().out.splitlines()]
    examples = [line[1:] for line in lines if line[:2] == ["cachecore", "new-backend"]]

    assert len(examples) == 3
    for number, example in enumerate(examples):
        given = [one for one in example if one != "--directory" and "/" not in one]
        assert main([*given, "--directory", str(number)]) == 0
