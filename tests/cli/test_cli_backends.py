"""``cachecore backends``: what serves, why the rest does not, and what is misspelt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_lines import run_json

from cachecore.cli import main

BROKEN = Path(__file__).parents[1] / "broken_plugins"


def test_backends_says_what_serves_and_why_the_others_do_not(install, capsys):
    install("slow", priority=3)
    install("fast", priority=9)
    install("absent", priority=50, probe="lambda device: 'no driver'")
    told = run_json(capsys, "backends", "--device", "demo:1")

    (device,) = told["devices"]
    assert (device["device"], device["chosen"]) == ("demo:1", "fast")
    assert device["why"] == "priority 9, ahead of slow 3"
    assert {other["backend"]: other["reason"] for other in device["others"]} == {
        "absent": "no driver",
        "slow": "priority 3, 'fast' has 9",
        "bytes": "serves null, not demo",
    }
    assert [plugin["name"] for plugin in told["plugins"]] == ["absent", "fast", "slow"]
    assert told["plugins"][1] == {
        "name": "fast",
        "distribution": "cachecore-fast",
        "version": "1.2",
        "status": "loaded",
        "reason": None,
    }
    assert [copy["name"] for copy in told["block_copies"]] == ["absent-copy", "fast-copy", "slow-copy", "bytes"]


def test_backends_tells_each_reason_once_and_equal_ones_together(install, capsys):
    install("slow", priority=3)
    install("fast", priority=9)
    for name in ("absent", "gone"):
        (module,) = install(name, priority=50, probe="lambda device: 'no driver'").glob("*.py")
        module.write_text(module.read_text().replace("lambda src, dst: None", "lambda src, dst: 'no memory of mine'"))
    assert main(["backends", "--device", "demo", "--check"]) == 0

    assert capsys.readouterr().out.partition("\ndevice ")[2].splitlines() == [
        "demo: fast, priority 9, ahead of slow 3",
        "  not absent (cachecore-absent), gone (cachecore-gone): no driver",
        "  for other devices: bytes",
        "  checked: blocks in memory demo, swapped to host",
        "    copy, swap_out, swap_in by fast-copy, path bytes",
        "      not absent-copy, gone-copy: no memory of mine",
    ]


def test_a_forced_backend_needs_no_reason_for_each_other(install, capsys, monkeypatch):
    install("slow", priority=3)
    install("fast", priority=9)
    monkeypatch.setenv("CACHECORE_BACKEND", "slow")
    assert main(["backends", "--device", "demo"]) == 0

    lines = ["demo: slow, forced as 'slow'", "  for other devices: bytes"]
    assert capsys.readouterr().out.partition("\ndevice ")[2].splitlines() == lines


def test_names_that_match_nothing_are_noted(install, capsys, monkeypatch):
    install("demo")
    monkeypatch.setenv("CACHECORE_BACKEND", "deno")
    monkeypatch.setenv("CACHECORE_DISABLE_PLUGINS", "other, demos")
    monkeypatch.setenv("CACHECORE_DISABLE_COPIES", "demo-copy,bites")
    assert main(["backends"]) == 0

    told = capsys.readouterr().out
    assert [line.removeprefix("  note: ") for line in told.splitlines() if line.startswith("  note: ")] == [
        "CACHECORE_BACKEND names 'deno', but no backend of that name is installed; did you mean 'demo'?",
        "CACHECORE_DISABLE_PLUGINS names 'other', but no plugin of that name is installed",
        "CACHECORE_DISABLE_PLUGINS names 'demos', but no plugin of that name is installed; did you mean 'demo'?",
        "CACHECORE_DISABLE_COPIES names 'bites', but no block copy of that name is installed; did you mean 'bytes'?",
    ]
    assert "device demo: none, since there is no backend 'deno', which is forced\n" in told


def test_backends_shows_every_claimed_device_type(install, capsys):
    install()

    assert [device["device"] for device in run_json(capsys, "backends")["devices"]] == ["cpu", "demo", "null"]


def test_a_plugin_that_exits_is_named_by_the_check(capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN / "exits"))

    assert main(["backends", "--device", "null", "--check"]) == 1

    told = capsys.readouterr()
    assert (
        "not exits-at-probe (cachecore-broken-exits): probe raised SystemExit: broken-exits has seen enough" in told.out
    )
    # its policy cannot be loaded, so no plan can be made for the engine of the check
    assert "check on null failed: NoBackendError: backend 'exits-at-load@cachecore-broken-exits', which is" in told.err


def test_backends_that_serve_nothing_are_exit_code_1_when_a_device_was_named(capsys):
    assert main(["backends", "--device", "npu"]) == 1
    told = capsys.readouterr()
    line = (
        "`python -m pip install ./plugins/ascend-dlinfer` in a checkout (cachecore-ascend-dlinfer is not on PyPI yet)"
    )
    assert told.out.endswith(f"device npu: none serves it; try {line}\n  for other devices: bytes\n")
    assert told.err == "cachecore: error: no backend serves npu; the report says why\n"


@pytest.mark.parametrize(
    ("folder", "reason"),
    [
        ("import_error", "import of 'broken_import_error' failed: ModuleNotFoundError: No module named"),
        ("misspelt_hook", "unknown hook 'cachecore_register_backend'"),
        ("wrong_argument", "Argument(s) {'platform'} are declared in the hookimpl but can not be found"),
        ("wrong_return_type", "expected a sequence of BackendInfo"),
        ("too_new_api", "speaks plugin API 2, this cachecore 1"),
    ],
)
def test_a_broken_plugin_is_shown_with_its_cause(folder, reason, install, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(BROKEN / folder))
    install()
    assert main(["backends", "--device", "demo"]) == 0

    told = capsys.readouterr().out
    assert reason in told
    assert "failed" in told
    assert "device demo: demo, priority 7, the only one that serves" in told


def test_skipped_plugins_and_disabled_copies_are_shown(install, capsys, monkeypatch):
    install("one")
    install("two")
    monkeypatch.setenv("CACHECORE_DISABLE_PLUGINS", "one")
    monkeypatch.setenv("CACHECORE_DISABLE_COPIES", "two-copy")
    told = run_json(capsys, "backends")

    assert [(plugin["name"], plugin["status"], plugin["reason"]) for plugin in told["plugins"]] == [
        ("two", "loaded", None),
        ("one", "skipped", "denied by CACHECORE_DISABLE_PLUGINS"),
    ]
    assert {copy["name"]: copy["enabled"] for copy in told["block_copies"]} == {"two-copy": False, "bytes": True}
    assert told["environment"] == {"CACHECORE_DISABLE_PLUGINS": "one", "CACHECORE_DISABLE_COPIES": "two-copy"}


def test_a_tie_names_both(install, capsys):
    install("one")
    install("two")

    assert main(["backends", "--device", "demo"]) == 1
    told = capsys.readouterr().out
    assert "device demo: none, since backends 'one' (cachecore-one) and 'two' (cachecore-two) both serve demo" in told


def test_a_strangers_cachecore_is_named(tmp_path, capsys, monkeypatch):
    info = tmp_path / "cachecore-0.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cachecore\nVersion: 0.4.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert main(["backends", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["stranger"]["version"] == "0.4.0"
    assert told.err.startswith("cachecore: warning: distribution 'cachecore' 0.4.0 is installed, a stranger's package")


def test_check_moves_blocks_and_says_which_way(install, capsys):
    install()
    (device,) = run_json(capsys, "backends", "--device", "demo", "--check")["devices"]

    assert device["check"]["error"] is None
    assert (device["check"]["memory_kind"], device["check"]["host_memory_kind"]) == ("demo", "host")
    assert [(copy["direction"], copy["record"], copy["fallback"]) for copy in device["check"]["copies"]] == [
        ("copy", "demo-copy", False),
        ("swap_out", "demo-copy", False),
        ("swap_in", "demo-copy", False),
    ]


def test_a_failed_check_is_exit_code_1(install, capsys):
    site = install()
    (module,) = site.glob("*.py")
    module.write_text(module.read_text().replace("StandardLayoutPolicy, Demo)", "StandardLayoutPolicy, lambda: 3)"))

    assert main(["backends", "--device", "demo", "--check"]) == 1
    told = capsys.readouterr()
    assert (
        "  check failed: PluginError: backend 'demo' of cachecore-demo: load() returned 3, which is no CacheBackend"
        in told.out
    )
    assert told.err.startswith("cachecore: error: the check on demo failed: PluginError")
