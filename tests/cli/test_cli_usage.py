"""Usage, exit codes and streams of the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from command_lines import run_module

from cachecore.cli import main


def test_version_names_the_distribution(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])

    assert stopped.value.code == 0
    assert "(cachecore-kv, plugin API 1, Python 3." in capsys.readouterr().out


def test_no_command_prints_help_and_is_wrong_usage(capsys):
    assert main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "cachecore explain plan.json --picture layout.svg" in told.err


@pytest.mark.parametrize("command", ["backends", "plan", "explain", "bench"])
def test_help_teaches_with_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])

    assert stopped.value.code == 0
    told = capsys.readouterr().out
    assert "--json" in told
    assert f"  cachecore {command} " in told


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["cure"], "invalid choice: 'cure'"),
        (["explain"], "required: PLAN.json"),
        (["bench", "moves"], "invalid choice: 'moves'"),
        (["backends", "--device", "GPU 1"], "device 'GPU 1' is not understood; expected a type and an optional index"),
        (["plan"], "required: --layers"),
        (["plan", "--layers", "2", "--memory", "20G"], "'20G' has no clear unit; write 20GiB"),
        (["plan", "--layers", "x"], "'x' lists no layers; expected ids such as 0-4,6 or a count"),
        (["plan", "--layers", "2", "--window", "4"], "--sliding-layers and --window go together"),
        (["plan", "--layers", "2", "--sliding-layers", "2", "--window", "4"], "names layer 2, which --layers does not"),
        (
            ["plan", "--layers", "2", "--context-length", "8"],
            "--context-length says how a memory is shared; give --mem",
        ),
        (["plan", "--layers", "2", "--latent-dim", "8", "--kv-heads", "1"], "--kv-heads and --latent-dim contradict"),
        (
            ["plan", "--layers", "2", "--head-dim", "8", "--rope-dim", "8"],
            "--rope-dim belongs to MLA; give --latent-dim",
        ),
        (["plan", "--layers", "2", "--head-dim", "8", "--dtype", "bf16"], "'bf16' (did you mean bfloat16?)"),
        (
            ["plan", "--layers", "2", "--head-dim", "8", "--dtype", "fp8"],
            "quantised K/V is asked for with --quant-policy",
        ),
        (["plan", "--layers", "2", "--head-dim", "8", "--quant-policy", "q"], "invalid choice: 'q'"),
        (["plan", "--layers", "2", "--head-dim", "8", "--tp-rank", "1"], "--tp-rank is 1; expected 0 to 0"),
        (["plan", "--layers", "2", "--head-dim", "0"], "0 is too small; expected 1 or more"),
        (["plan", "--layers", "2", "--head-dim", "x"], "'x' is no whole number"),
        (["plan", "--layers", "2", "--head-dim", "8", "--kv-heads", "2", "--tp", "3"], "2 KV heads on 3 tensor-par"),
        (
            ["plan", "--layers", "2", "--head-dim", "8", "--block-size", "8", "--kernel-block-size", "3"],
            "--block-size 8",
        ),
        (["explain", "plan.json", "--blocks", "many"], "'many' is no count; expected a number such as 1024"),
    ],
)
def test_wrong_usage_is_exit_code_2(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)

    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_refusal_is_one_line_and_exit_code_1(capsys):
    argv = ["plan", "--device", "null", "--layers", "2", "--head-dim", "9", "--quant-policy", "int4"]
    assert main(argv) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("cachecore: error: k_cache: head size 9 is no multiple of 2")
    assert told.err.count("\n") == 1


def test_a_usage_error_is_what_is_needed_the_reason_and_where_to_read(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--layers", "2"])

    assert capsys.readouterr().err.splitlines() == [
        "usage: cachecore plan --layers N [options]; see `cachecore plan --help`",
        "cachecore plan: error: --head-dim is missing; give --head-dim, or --latent-dim and --rope-dim for MLA",
    ]


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


def test_the_module_runs_from_any_folder(tmp_path):
    made = run_module(
        *("plan", "--device", "null", "--backend", "bytes", "--layers", "2", "--head-dim", "64", "-o", "plan.json"),
        cwd=tmp_path,
    )
    told = run_module("explain", "plan.json", cwd=tmp_path)

    assert (made.returncode, made.stderr) == (0, "")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("plan for device null by backend bytes, 1 group\n")


def test_the_module_imports_no_array_library(plan_file):
    code = (
        f"import sys; from cachecore.cli import main; main(['explain', {str(plan_file)!r}, '--json']);"
        "print(*sorted({'torch', 'numpy', 'triton'} & set(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr.strip()) == (0, "")


def test_a_missing_file_is_told_in_one_line(tmp_path):
    done = run_module("explain", "nowhere.json", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr == "cachecore: error: nowhere.json: No such file or directory\n"


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


def test_a_closed_standard_input_has_no_plan():
    done = subprocess.run(
        ["sh", "-c", '"$0" -m cachecore explain - <&-', sys.executable], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr[:40]) == (1, "cachecore: error: standard input is clos")


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
