"""``cachecore check``, as a vendor uses it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from installed import install

from cachecore.cli import main
from cachecore.testing import LEVELS

WRONG = """
    from cachecore import BackendInfo, ByteBackend, StandardLayoutPolicy, hookimpl

    class Backend(ByteBackend):
        name = "wrong"

        def read(self, allocation, pool, offset, nbytes):
            return super().read(allocation, pool, offset, nbytes)[:-1]

    @hookimpl
    def cachecore_register_backends():
        probe = lambda device: None if device.index is None else "there is one"
        return [BackendInfo("wrong", ("sim",), 50, probe, StandardLayoutPolicy, Backend)]
"""


@pytest.fixture
def wrong_backend(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_wrong", WRONG)))


def test_a_right_backend_exits_with_0_and_shows_every_level(capsys):
    code = main(["check", "bytes", "--level", "golden", "--level", "order"])

    printed = capsys.readouterr()
    assert code == 0
    assert "golden        pass" in printed.out
    assert "order         skipped" in printed.out
    assert printed.err.splitlines() == ["cachecore: checking golden", "cachecore: checking order"]


def test_a_wrong_backend_exits_with_1_and_names_the_fault(wrong_backend, capsys):
    code = main(["check", "wrong", "--level", "memory"])

    printed = capsys.readouterr().out
    assert code == 1
    assert "FAIL memory/every-byte[kv] and 2" in printed
    assert "\n  read() of all of pool 0: expected " in printed
    assert "read() drops the tail" in printed


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        (
            "raise type('Odd', (OSError,), {'__str__': lambda self: 1 / 0})",
            "<Odd, whose str() raised ZeroDivisionError>",
        ),
    ],
)
def test_whatever_a_backend_raises_is_told_in_a_report(fault, told, capsys, tmp_path, monkeypatch):
    source = WRONG.replace(
        "def read(", f"def allocate(self, *given, **more):\n            {fault}\n\n        def read("
    )
    monkeypatch.delitem(sys.modules, "cachecore_wrong", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_wrong", source)))

    code = main(["check", "wrong", "--level", "memory", "--json"])

    data = json.loads(capsys.readouterr().out)
    checks = [check for level in data["levels"] for check in level["checks"]]
    assert (code, data["status"], data["environment"]["error"].endswith(told)) == (1, "fail", True)
    assert all(f"{told}, raised in allocate()" in check["told"] for check in checks if check["status"] == "fail")


def test_a_backend_that_does_not_answer_keeps_no_report_back(capsys, tmp_path, monkeypatch):
    source = WRONG.replace(
        "def read(", "def memory(self, device):\n            __import__('time').sleep(60)\n\n        def read("
    )
    monkeypatch.delitem(sys.modules, "cachecore_wrong", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_wrong", source)))
    monkeypatch.setattr("cachecore.testing.results.ANSWER_S", 0.2)

    main(["check", "wrong", "--level", "discovery", "--json"])

    told = json.loads(capsys.readouterr().out)["environment"]["error"]
    assert told == "the backend did not answer within 0.2 s"


def test_what_a_backend_says_that_no_report_can_hold_is_told(capsys, tmp_path, monkeypatch):
    source = WRONG.replace(
        "def read(", "def memory(self, device):\n            return [float('nan')]\n\n        def read("
    )
    monkeypatch.delitem(sys.modules, "cachecore_wrong", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_wrong", source)))

    main(["check", "wrong", "--level", "discovery", "--json"])

    assert "ValueError: Out of range float values" in json.loads(capsys.readouterr().out)["environment"]["error"]


def test_what_a_plugin_prints_is_no_part_of_the_report(capsys, tmp_path, monkeypatch):
    source = f"    print('a banner')\n{WRONG}".replace(
        "def read(",
        "def capabilities(self):\n            print('noise')\n            "
        "return super().capabilities()\n\n        def read(",
    )
    monkeypatch.delitem(sys.modules, "cachecore_wrong", raising=False)
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_wrong", source)))

    main(["check", "wrong", "--level", "discovery", "--json"])

    printed = capsys.readouterr()
    assert json.loads(printed.out)["backend"] == "wrong"
    assert "a banner" in printed.err
    assert "noise" in printed.err


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_checked(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["check", "bytes", "--report", str(tmp_path / "no" / "report.json")])

    printed = capsys.readouterr()
    assert (caught.value.code, printed.out) == (2, "")
    assert "report.json: its folder is not there; make it first, nothing was checked" in printed.err
    assert "checking" not in printed.err


@pytest.mark.parametrize(
    ("report", "told"),
    [("", "a folder, no file"), ("folder", "a folder, no file"), ("locked", "it may not be written")],
)
def test_a_report_where_none_can_stand_is_refused_before_anything_is_checked(
    capsys, tmp_path, monkeypatch, report, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "locked").touch()
    monkeypatch.setattr("os.access", lambda path, mode: "locked" not in str(path))  # root may write everywhere

    with pytest.raises(SystemExit) as caught:
        main(["check", "bytes", "--report", report])

    printed = capsys.readouterr()
    assert (caught.value.code, printed.out) == (2, "")
    assert re.search(f"{told}.*, nothing was checked", printed.err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_progress_that_cannot_be_told_is_no_failure():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "cachecore", "check", "bytes", "--level", "discovery"]
        done = subprocess.run(command, stderr=full, stdout=subprocess.PIPE, text=True, check=False)

    assert (done.returncode, "0 failed" in done.stdout) == (0, True)


def test_help_names_every_level(capsys):
    with pytest.raises(SystemExit):
        main(["check", "--help"])

    assert ", ".join(LEVELS) in " ".join(capsys.readouterr().out.split())


def test_the_report_is_what_json_prints(wrong_backend, capsys, tmp_path):
    code = main(["check", "wrong", "--level", "memory", "--json", "--report", str(tmp_path / "report.json")])

    said = capsys.readouterr()
    printed, written = json.loads(said.out), json.loads((tmp_path / "report.json").read_text())
    assert code == 1
    assert said.err.endswith(f"cachecore: wrote the report, {tmp_path / 'report.json'}\n")
    assert printed == written
    assert (written["status"], written["distribution"], written["distribution_version"]) == (
        "fail",
        "cachecore-wrong",
        "1.0",
    )
    failed = [check for level in written["levels"] for check in level["checks"] if check["status"] == "fail"]
    assert "read() drops the tail" in failed[0]["told"]


def test_no_such_backend_exits_with_2(capsys):
    assert main(["check", "nothing"]) == 2
    assert "no installed plugin announces backend 'nothing'" in capsys.readouterr().err


def test_a_device_that_is_not_here_exits_with_2_and_says_what_can_be_checked(wrong_backend, capsys):
    code = main(["check", "wrong", "--device", "sim:3", "--level", "golden", "--level", "views"])

    printed = capsys.readouterr()
    assert code == 2
    assert "wrong does not serve sim:3 here (there is one)" in printed.err
    assert "name the levels that need none" in printed.err
    assert "golden        pass" in printed.out


def test_levels_without_a_device_exit_with_0_where_it_is_not(wrong_backend):
    assert main(["check", "wrong", "--device", "sim:3", "--level", "layout"]) == 0


@pytest.mark.parametrize("arguments", [["check"], ["check", "bytes", "--level", "speed"]], ids=["no-name", "no-level"])
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exited:
        main(arguments)

    assert exited.value.code == 2
    assert "usage: cachecore check" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["nan", "inf", "0", "-1", "1e300", "soon"])
def test_a_limit_that_nobody_can_wait_for_exits_with_2(limit, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "bytes", "--level", "layout", f"--limit={limit}"])

    assert ended.value.code == 2
    assert f"'{limit}' is no number of seconds above 0" in capsys.readouterr().err


def test_no_check_has_more_to_say_than_a_line(capsys, tmp_path):
    assert main(["check", "bytes", "--level", "swap", "--report", str(tmp_path / "report.json")]) == 0

    written = (tmp_path / "report.json").read_text()
    assert '"8208 runs"' in written
    assert len(written) < 20_000


def test_list_names_every_level_and_checks_nothing(capsys):
    assert main(["check", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == list(LEVELS)
    assert any("far-offsets" in line for line in lines)


def test_list_as_json(capsys):
    assert main(["check", "--list", "--json", "--level", "swap"]) == 0

    (level,) = json.loads(capsys.readouterr().out)
    assert level["level"] == "swap"
    assert "round-trip" in level["checks"]


def test_what_is_said_to_be_missed_is_what_is_skipped_for_it(capsys):
    main(["check", "bytes", "--device", "npu", "--level", "discovery", "--level", "views"])

    printed = capsys.readouterr()
    skipped = re.search(r"^skipped (\d+) checks of discovery, views: ", printed.out, re.MULTILINE)
    assert skipped is not None
    assert f"so {skipped[1]} checks were not made" in printed.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_report_that_finds_no_room_is_told_with_its_file(capsys):
    code = main(["check", "bytes", "--level", "golden", "--report", "/dev/full"])

    printed = capsys.readouterr()
    assert code == 2
    assert "the report was not written to /dev/full: No space left on device; it stands above" in printed.err
    assert "15 passed" in printed.out
