"""``cachecore plan`` and ``cachecore explain``."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from command_lines import run_json

from cachecore import CachePlanSet
from cachecore.cli import main


def test_explain_writes_a_picture_to_scale(plan_file, tmp_path, capsys):
    picture = tmp_path / "layout.svg"
    told = run_json(capsys, "explain", str(plan_file), "--picture", str(picture), "--blocks", "10")

    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert told["picture"] == str(picture)
    assert main(["explain", str(plan_file), "--picture", str(picture)]) == 0
    assert capsys.readouterr().err == f"cachecore: wrote {picture}\n"
    # 3 layers * 512 bytes * 10
    assert told["groups"][0]["device"]["nbytes"] == 15360


def test_explain_draws_in_letters_when_asked(plan_file, capsys):
    assert main(["explain", str(plan_file)]) == 0
    plain = capsys.readouterr().out
    assert main(["explain", str(plan_file), "--text"]) == 0
    drawn = capsys.readouterr().out

    assert drawn.startswith(plain)
    assert "Kk k_cache  Vv v_cache  · padding" in drawn.removeprefix(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is no plan: not JSON"),
        ("[1]", "this is no plan: expected a JSON object with format 'cachecore-plan'"),
        ('{"format": "cachecore-plan", "version": 99}', "plan format version 99 is not understood"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_name(text, message, tmp_path, capsys):
    path = tmp_path / "damaged.json"
    path.write_text(text)

    assert main(["explain", str(path)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"cachecore: error: {path}: {message}")
    assert told.count("\n") == 1


def test_blocks_of_a_group_that_is_not_there_are_refused(plan_file, capsys):
    assert main(["explain", str(plan_file), "--blocks", "half=3"]) == 1
    assert "--blocks names group 'half', but the plan has group 'full'" in capsys.readouterr().err


def test_plan_says_how_many_blocks_and_tokens_fit(tmp_path, capsys):
    path = tmp_path / "plan.json"
    told = run_json(
        capsys,
        *("plan", "--device", "null", "--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--dtype", "bfloat16"),
        *("--block-size", "64", "--kernel-block-size", "16", "--memory", "20GiB", "--host-memory", "1GiB"),
        *("-o", str(path)),
    )

    # 32 layers * (K and V) * 64 tokens * 8 heads * 128 * 2 bytes = 8 MiB a block
    assert told["groups"][0]["block_nbytes"] == 8 * 1024**2
    assert (told["groups"][0]["logical_block_size"], told["groups"][0]["kernel_block_size"]) == (64, 16)
    assert told["device"]["num_blocks"] == {"full": 2560}
    assert told["device"]["longest_sequence"] == 2560 * 64
    assert told["host"]["num_blocks"] == {"full": 128}
    assert "plan" not in told
    assert CachePlanSet.loads(path.read_text()).only().geometry.pages_per_block == 4


def test_one_block_is_told_as_one(capsys):
    # 2 layers * (K and V) * 64 tokens * 64 * 2 bytes = 32 KiB a block
    assert main(["plan", "--device", "null", "--layers", "2", "--head-dim", "64", "--memory", "40KiB"]) == 0

    told = capsys.readouterr().out
    assert "  32 KiB    512 B\n" in told
    assert "device: 40 KiB hold 1 block of group full (8 KiB left)\n" in told


def test_plan_without_an_output_is_in_the_json(capsys):
    told = run_json(capsys, "plan", "--device", "null", "--layers", "0-1,5", "--head-dim", "64", "--tp", "1")

    assert (told["output"], told["device"], told["host"]) == (None, None, None)
    assert (told["planned_for"], told["backend"]) == ("null", "bytes")
    assert CachePlanSet.from_json(told["plan"]).only().specs[0].row_ids == (0, 1, 5)


def test_plan_of_sliding_layers_has_two_groups(capsys):
    argv = [
        "plan",
        "--device",
        "null",
        "--layers",
        "6",
        "--sliding-layers",
        "0-4",
        "--window",
        "512",
        "--head-dim",
        "64",
    ]
    assert main([*argv, "--memory", "1GiB", "--context-length", "8192"]) == 0
    told = capsys.readouterr().out

    assert "sequences of 8,192 tokens that fit at once: " in told
    assert "blocks of group sliding" in told
    with pytest.raises(SystemExit):
        main([*argv, "--memory", "1GiB"])
    assert "groups full, sliding share the memory; say how with --context-length" in capsys.readouterr().err


def test_plan_of_a_quantised_latent(capsys):
    told = run_json(
        capsys,
        *("plan", "--device", "null", "--layers", "61", "--latent-dim", "512", "--rope-dim", "64", "--sparse-mla"),
        *("--quant-policy", "fp8", "--block-size", "64"),
    )

    # 64 tokens * 656 bytes = 41,984, a multiple of 256, in 61 layers
    assert told["groups"][0]["block_nbytes"] == 61 * 41984


def test_more_than_fits_is_refused_with_the_remedy(capsys):
    assert main(["plan", "--device", "null", "--layers", "32", "--head-dim", "128", "--memory", "4KiB"]) == 1
    assert "needed for full: 1, but 4 KiB (4,096 B) are there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("0", "0 layers; expected 1 to"),
        ("1000000000000", "1000000000000 layers; expected 1 to"),
        ("0-99999999999", "lists more than"),
        ("5-2", "lists no layers from 5 to 2"),
        ("9" * 5000, "5000 digits"),
    ],
)
def test_layers_that_cannot_be_meant_are_wrong_usage(layers, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "--device", "null", "--head-dim", "8", "--layers", layers])

    assert message in capsys.readouterr().err


def test_a_group_named_twice_is_wrong_usage(plan_file, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["explain", str(plan_file), "--blocks", "full=1,full=2"])

    assert "names a group twice" in capsys.readouterr().err
