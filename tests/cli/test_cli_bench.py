"""``cachecore bench``: which benchmark runs, what it is asked for, and its table."""

from __future__ import annotations

import pytest
from command_lines import run_json

from cachecore.cli import main


def test_bench_runs_the_benchmark_of_the_chosen_backend(install, capsys):
    install(bench=("demo", "bench"))
    told = run_json(capsys, "bench", "swap", "--device", "demo:2", "--quick")

    assert (told["what"], told["backend"], told["bench"], told["quick"]) == ("swap", "demo", "demo", True)
    assert told["results"][0]["scenario"] == "swap demo:2 demo@cachecore-demo True False"


def test_bench_prints_a_table(install, capsys):
    install(bench=("any", "bench"))
    assert main(["bench", "copy", "--device", "demo"]) == 0

    first, header, row = capsys.readouterr().out.splitlines()
    title = "copy on demo by backend demo (priority 7, the only one that serves)"
    assert first == f"{title}, blocks moved by demo-copy of cachecore-demo"
    assert header.split() == ["scenario", "run", "pairs", "path", "GB/s", "limit", "ratio", "contiguous", "submit"]
    assert row.split()[-10:] == ["8", "KiB", "64", "bytes", "3.00", "4.00", "0.75", "0.50", "20", "us"]


@pytest.mark.parametrize(
    ("bench", "message"),
    [
        (None, "no benchmark 'demo' is installed; there are: none."),
        (("demo", "bench_without_a_ratio"), "benchmark 'demo' returned a result without ratio"),
        (("demo", "no_bench"), "benchmark 'demo' of cachecore-demo 1.2 is 3; expected a callable"),
        (
            ("demo", "missing"),
            "benchmark 'demo' of cachecore-demo 1.2: import of 'cachecore_demo_module:missing' raised",
        ),
    ],
)
def test_a_benchmark_that_cannot_run_is_named(bench, message, install, capsys):
    install(bench=bench)

    assert main(["bench", "copy", "--device", "demo"]) == 1
    assert message in capsys.readouterr().err


def test_bench_marks_baselines_and_explains_a_ratio_above_one(install, capsys):
    install(bench=("demo", "bench_with_a_baseline"))
    assert main(["bench", "copy", "--device", "demo"]) == 0

    _, _, own, peer, note = capsys.readouterr().out.splitlines()
    assert own.split()[0] == "runs"
    assert peer.split() == ["baseline", "plain", "3.00", "4.00", "1.25", "0.50", "2.50", "ms"]
    assert note.startswith("  a ratio above 1.00: ")


def test_bench_of_a_named_backend_asks_for_its_own_copies(install, capsys):
    install(bench=("demo", "bench"))
    told = run_json(capsys, "bench", "copy", "--device", "demo", "--backend", "demo")

    assert told["results"][0]["scenario"] == "copy demo demo@cachecore-demo False True"


@pytest.mark.parametrize("asked", [False, True])
def test_bench_asks_for_one_run_a_block_where_it_is_wanted(install, capsys, asked):
    install(bench=("demo", "bench_of_hints"))
    told = run_json(capsys, "bench", "swap", "--device", "demo", *["--one-run-per-block"] * asked)

    assert told["one_run_per_block"] is asked
    assert told["results"][0]["scenario"] == f"hint: {asked}"


def test_bench_says_above_the_table_that_blocks_are_one_run(install, capsys):
    install(bench=("demo", "bench_of_hints"))

    assert main(["bench", "swap", "--device", "demo", "--one-run-per-block"]) == 0
    assert capsys.readouterr().out.startswith("swap of blocks that are one run on demo by backend demo")


def test_a_benchmark_that_knows_no_hints_is_named(install, capsys):
    install(bench=("demo", "bench"))

    assert main(["bench", "copy", "--device", "demo", "--one-run-per-block"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "benchmark 'demo'" in told.err
    assert "unexpected keyword argument 'one_run_per_block'" in told.err


def test_a_benchmark_that_takes_any_hint_must_say_that_it_took_it(install, capsys):
    install(bench=("demo", "bench_with_a_baseline"))

    assert main(["bench", "copy", "--device", "demo", "--one-run-per-block"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "benchmark 'demo' returned a result that does not say one_run_per_block=True" in told.err


def test_bench_of_the_reference_is_refused_before_anything_is_printed(install, capsys):
    install(bench=("demo", "bench"))

    assert main(["bench", "copy", "--device", "null"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "backend 'bytes' on null is the reference that copies byte by byte; it has no benchmark. Name a" in told.err


def test_several_benchmarks_need_a_name(install, capsys):
    install("demo", bench=("one", "bench"))
    install("other", priority=1, bench=("two", "bench"))

    assert main(["bench", "copy", "--device", "demo"]) == 1
    assert "no benchmark 'demo' is installed; there are: one, two. Name one with --bench" in capsys.readouterr().err
    assert run_json(capsys, "bench", "copy", "--device", "demo", "--bench", "two")["bench"] == "two"
