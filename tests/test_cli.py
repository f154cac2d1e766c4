"""Usage and exit codes of the command line; ``tests/cli/`` has a file a command."""

from __future__ import annotations

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


def test_the_module_runs_from_any_folder(tmp_path):
    made = run_module(
        *("plan", "--device", "null", "--backend", "bytes", "--layers", "2", "--head-dim", "64", "-o", "plan.json"),
        cwd=tmp_path,
    )
    told = run_module("explain", "plan.json", cwd=tmp_path)

    assert (made.returncode, made.stderr) == (0, "")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("plan for device null by backend bytes, 1 group\n")


def test_a_missing_file_is_told_in_one_line(tmp_path):
    done = run_module("explain", "nowhere.json", cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr == "cachecore: error: nowhere.json: No such file or directory\n"


def test_a_closed_standard_input_has_no_plan():
    done = subprocess.run(
        ["sh", "-c", '"$0" -m cachecore explain - <&-', sys.executable], check=False, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr[:40]) == (1, "cachecore: error: standard input is clos")
