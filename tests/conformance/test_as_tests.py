"""The kit as a pytest plugin, as a vendor's own tests run it."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from installed import install

ABSENT = """
    from cachecore import BackendInfo, ByteBackend, StandardLayoutPolicy, hookimpl

    @hookimpl
    def cachecore_register_backends():
        return [BackendInfo("absent", ("sim",), 50, lambda device: "there is one", StandardLayoutPolicy, ByteBackend)]
"""

OWN_BACKEND = """
from conformance.mutant import byte_subject
import pytest
from cachecore.testing.test_conformance import test_conformance

@pytest.fixture(scope="session")
def cachecore_subject():
    return byte_subject()
"""


def run_pytest(*arguments, folder):
    plugin = [] if entry_points(group="pytest11", name="cachecore") else ["-p", "cachecore.testing.pytest_plugin"]
    paths = [*filter(None, sys.path)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *arguments]
    code = f"import sys; sys.path[:0] = {paths!r}; import pytest; sys.exit(pytest.main({command[3:]!r}))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=120, check=False
    )


def test_the_kit_runs_as_tests(tmp_path):
    done = run_pytest(
        "--pyargs", "cachecore.testing", "--cachecore-backend", "bytes", "--cachecore-level", "golden", folder=tmp_path
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed" in done.stdout


def test_without_a_backend_the_tests_say_how_to_name_one(tmp_path):
    done = run_pytest("--pyargs", "cachecore.testing", folder=tmp_path)

    assert done.returncode == 4, done.stdout + done.stderr
    assert "name the backend with --cachecore-backend" in done.stdout + done.stderr


def test_an_unknown_level_is_a_usage_error(tmp_path):
    done = run_pytest("--pyargs", "cachecore.testing", "--cachecore-level", "speed", folder=tmp_path)

    assert done.returncode != 0
    assert "level 'speed' does not exist" in done.stdout


def test_a_vendor_may_give_a_subject_of_its_own(tmp_path):
    (tmp_path / "test_mine.py").write_text(OWN_BACKEND, encoding="utf-8")

    done = run_pytest("test_mine.py", "--cachecore-level", "states", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "13 passed" in done.stdout  # twelve of the level, and that its device is there


@pytest.fixture
def absent(tmp_path, monkeypatch):
    """What names a backend whose device is not here."""
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_absent", ABSENT)))
    return ("--pyargs", "cachecore.testing", "--cachecore-backend", "absent", "--cachecore-device", "sim:3")


LAYOUT_AND_STATES = ("--cachecore-level", "golden", "--cachecore-level", "states")


def test_tests_that_check_nothing_on_the_device_fail(tmp_path, absent):
    done = run_pytest(*absent, *LAYOUT_AND_STATES, folder=tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 15 passed, 12 skipped" in done.stdout
    assert "backend 'absent' does not serve sim:3 here: there is one. Nothing that needs the device was" in done.stdout
    assert "cachecore_device_optional = true" in done.stdout
    assert "another exception" not in done.stdout


@pytest.mark.parametrize(
    "optional",
    [("--cachecore-device-optional",), ("-o", "cachecore_device_optional=true")],
    ids=["option", "ini"],
)
def test_a_device_may_be_absent_where_that_is_said_and_loudly(tmp_path, absent, optional):
    done = run_pytest(*absent, *LAYOUT_AND_STATES, *optional, folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed, 13 skipped" in done.stdout
    assert re.search(r"^!+ cachecore: NOTHING WAS CHECKED ON THE DEVICE !+$", done.stdout, re.MULTILINE)


def test_levels_that_need_no_device_are_tests_that_pass_without(tmp_path, absent):
    done = run_pytest(*absent, "--cachecore-level", "golden", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "15 passed" in done.stdout
    assert "NOTHING WAS CHECKED" not in done.stdout


def test_the_tests_say_whose_copies_ran(tmp_path):
    done = run_pytest(
        "--pyargs", "cachecore.testing", "--cachecore-backend", "bytes", "--cachecore-level", "swap", folder=tmp_path
    )

    assert "\nswap out by bytes of cachecore-kv, priority 0: bytes\nswap in by bytes of" in done.stdout


NEVER = """
    from cachecore import BlockCacheCopy, BlockCopyInfo, hookimpl

    @hookimpl
    def cachecore_register_block_copies():
        return [BlockCopyInfo("never", 90, lambda src, dst: "it serves nobody", lambda context: BlockCacheCopy())]
"""


@pytest.mark.parametrize(("level", "code"), [("swap", 1), ("golden", 0)])
def test_named_copies_that_served_nothing_fail_the_tests(tmp_path, monkeypatch, level, code):
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugins", "cachecore_never", NEVER)))
    named = ("--pyargs", "cachecore.testing", "--cachecore-backend", "bytes", "--cachecore-level", level)

    done = run_pytest(*named, "--cachecore-copies", "cachecore-never", folder=tmp_path)

    assert done.returncode == code, done.stdout + done.stderr
    assert ("no block copy of cachecore-never serves bytes, so none was checked" in done.stdout) == bool(code)
    assert " failed" not in done.stdout
