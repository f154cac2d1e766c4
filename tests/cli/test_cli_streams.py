"""Streams, interrupts and advice of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command_lines import run_module

from cachecore.cli import main


def test_what_forces_a_backend_is_told_as_an_option(install, capsys):
    site = install("one")
    install("two")
    (module,) = site.glob("*.py")
    module.write_text(f"{module.read_text()}\nclass StandardLayoutPolicy(StandardLayoutPolicy):\n    name = 'own'\n")
    probe = "lambda device: 'absent'"
    for module in site.parent.glob("*/*.py"):
        module.write_text(module.read_text().replace("lambda device: None", probe))

    assert main(["plan", "--device", "demo", "--layers", "2", "--head-dim", "64"]) == 1
    assert "say which with --backend one or CACHECORE_BACKEND=one." in capsys.readouterr().err


def test_the_module_imports_no_array_library(plan_file):
    code = (
        f"import sys; from cachecore.cli import main; main(['explain', {str(plan_file)!r}, '--json']);"
        "print(*sorted({'torch', 'numpy', 'triton'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_standard_input_is_read(plan_file):
    done = run_module("explain", "-", "--json", input=plan_file.read_text())

    assert done.returncode == 0
    assert json.loads(done.stdout)["device"] == "null"


def test_a_reader_that_leaves_early_is_no_error(plan_file):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "cachecore", "explain", str(plan_file), "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        told = process.stderr.read()

    assert (process.returncode, told) == (141, b"")


def test_an_interrupt_is_exit_code_130(install, capsys):
    install(bench=("demo", "bench_interrupted"))

    assert main(["bench", "copy", "--device", "demo"]) == 130
    assert capsys.readouterr().err == "cachecore: interrupted\n"


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_failure(redirection, plan_file):
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m cachecore explain "$1" --text {redirection}', sys.executable, str(plan_file)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("options", [["--text"], ["--json", "--text"]])
def test_a_terminal_of_another_encoding_gets_escapes(options, plan_file):
    done = subprocess.run(
        [sys.executable, "-m", "cachecore", "explain", str(plan_file), *options],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert done.stdout.isascii()
    if "--json" in options:
        assert "groups" in json.loads(done.stdout)
