"""``cachecore plan`` with the hints that a deployment gives its policy."""

from __future__ import annotations

import pytest
from command_lines import run_json

from cachecore import CachePlanSet
from cachecore.cli import main

LAYERS = ("plan", "--layers", "2", "--kv-heads", "2", "--head-dim", "64", "--block-size", "32")
ON_NULL = (*LAYERS, "--kernel-block-size", "16", "--device", "null")
ON_DEMO = (*LAYERS, "--kernel-block-size", "16", "--device", "demo")


def test_a_block_of_one_run_is_planned_and_sized(capsys):
    told = run_json(capsys, *ON_NULL, "--one-run-per-block", "--memory", "1MiB", "--host-memory", "1MiB")

    assert told["hints"] == {"one_run_per_block": True, "base_alignment": 512}
    (group,) = told["groups"]
    assert (group["layout"], group["host_layout"], group["block_runs"]) == ("page-major", "page-major", 1)
    plan = CachePlanSet.from_json(told["plan"]).only()
    assert plan.layout == plan.host_layout
    # 2 layers * (K and V) * 32 tokens * 2 heads * 64 * 2 bytes = 32 KiB a block
    assert (told["device"]["num_blocks"], told["host"]["num_blocks"]) == ({"full": 32}, {"full": 32})


def test_nothing_is_hinted_unless_asked(capsys):
    told = run_json(capsys, *ON_NULL)

    assert told["hints"] == {"one_run_per_block": False, "base_alignment": 512}
    assert (told["groups"][0]["layout"], told["groups"][0]["block_runs"]) == ("packed", 2)
    assert told["notes"] == []
    assert main([*ON_NULL]) == 0
    assert "note" not in capsys.readouterr().out


@pytest.mark.parametrize(("memory", "notes"), [("16MiB", 1), ("4GiB", 1), ("5GiB", 2)])
def test_where_offsets_of_32_bits_end_is_noted(memory, notes, capsys):
    told = run_json(capsys, *ON_NULL, "--one-run-per-block", "--memory", memory)

    # A page is 2 layers * (K and V) * 16 tokens * 2 heads * 64 = 8,192 elements; 2**31 are 262,144 pages, 4,194,304
    # tokens of 1 KiB: 4 GiB. The next one stands beyond.
    assert told["notes"][0] == "a block of group full is one run"
    assert len(told["notes"]) == notes
    assert all("from its pool's token 4,194,304 on" in note for note in told["notes"][1:])


def test_what_a_start_takes_and_what_was_assumed_are_noted(capsys):
    told = run_json(capsys, "plan", "--layers", "2", "--head-dim", "64", "--device", "null", "--base-alignment", "2MiB")

    assert told["notes"] == [
        "--kv-heads was not given, so K and V have one head",
        "each pool takes 2 MiB more than its blocks, so that it can start at a multiple of 2 MiB",
    ]


def test_a_plan_is_not_written_to_a_file_named_dash(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*ON_NULL, "-o", "-"])

    assert "-o - would be a file of that name" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "nbytes"), [("2MiB", 2 << 20), ("4096", 4096), ("1 KiB", 1024)])
def test_pools_start_where_asked(text, nbytes, capsys):
    told = run_json(capsys, *ON_NULL, "--base-alignment", text, "--one-run-per-block", "--memory", "4MiB")

    assert told["hints"]["base_alignment"] == nbytes
    plan = CachePlanSet.from_json(told["plan"]).only()
    assert {pool.base_alignment for layout in (plan.layout, plan.host_layout) for pool in layout.pools} == {nbytes}
    # the buffer is larger by the alignment: (4 MiB - nbytes) / 32 KiB
    assert told["device"]["num_blocks"] == {"full": ((4 << 20) - nbytes) // (32 << 10)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3MiB", "--base-alignment is 3145728; expected a positive power of two, in bytes"),
        ("2MB", "--base-alignment is 2000000; expected a positive power of two, in bytes"),
        ("0", "--base-alignment is 0; expected a positive integer"),
        ("2M", "argument --base-alignment: '2M' has no clear unit; write 2MiB"),
        ("-512", "argument --base-alignment: '-512' is no number of bytes"),
        ("16EiB", "--base-alignment has 65 bits; expected a number below 2**63"),
    ],
)
def test_a_start_that_cannot_be_is_wrong_usage(text, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([*ON_NULL, "--base-alignment", text])

    assert message in capsys.readouterr().err


def test_caches_that_want_dense_rows_refuse_one_run_in_the_command_lines_words(install, capsys):
    install(policy="Dense")

    assert main([*ON_DEMO]) == 0
    assert main([*ON_DEMO, "--one-run-per-block"]) == 1

    told = capsys.readouterr()
    assert told.err.startswith("cachecore: error: cache 'k_cache' wants contiguous rows, so a block cannot be one run")
    assert "(--one-run-per-block); leave the hint out" in told.err


def test_a_policy_that_does_not_honour_the_hint_is_told(install, capsys):
    install(policy="Deaf")

    assert main([*ON_DEMO, "--one-run-per-block"]) == 0

    told = capsys.readouterr().out
    assert "note: policy deaf does not honour one_run_per_block: a block of group full is 2 runs\n" in told
    assert run_json(capsys, *ON_DEMO, "--one-run-per-block")["groups"][0]["block_runs"] == 2


def test_help_names_both(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])

    told = " ".join(capsys.readouterr().out.split())
    assert "--one-run-per-block lay a block out as one run of bytes, where blocks are swapped" in told
    assert "--base-alignment BYTES where every pool starts, such as 2MiB (default: 512)" in told
