"""The demo's promises: exit codes, files, JSON, and that a wrong byte is found. On its tiny model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cachecore import CachePlanSet

EXAMPLES = Path(__file__).parents[3] / "examples"
pytestmark = pytest.mark.skipif(not (EXAMPLES / "smollm2.py").is_file(), reason="the examples are not in this package")


@pytest.fixture
def demo(monkeypatch, tmp_path):
    """Run the demo's ``main`` in a folder of its own."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    from smollm2 import main

    return lambda *arguments: main(["--model", "tiny", "--tokens", "3", *arguments])


def test_equal_logits_exit_0_and_write_everything(demo, tmp_path, capsys):
    assert demo() == 0

    out = capsys.readouterr().out
    assert "Every logit is bitwise equal to plain transformers" in out
    assert "Blocks still held at the end: 0" in out
    assert "; all came back into others\n" in out
    assert out.startswith("Plugins found: ")
    assert re.search(r"swap_out in full: .* GB/s, contiguous at [\d.]+ GB/s \(\S+ by \S+\)", out)
    assert re.search(r"^  host: \d+ blocks, block-major, .* B\)$", out, re.MULTILINE)
    assert "Decode speed of the caches side by side is not measured: backend 'cpu' brings no attention" in out
    files = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "out").iterdir()}
    assert sorted(files) == ["layout.svg", "layout.txt", "plan.json", "report.json"]
    assert files["layout.svg"].startswith("<svg")
    assert CachePlanSet.loads(files["plan.json"]).names == ("full",)


def test_json_is_the_whole_standard_output(demo, capsys):
    assert demo("--json", "--block-size", "8", "--kernel-block-size", "4", "--backend", "torch-default") == 0

    report = json.loads(capsys.readouterr().out)
    assert report["discovery"]["backend"] == "torch-default"
    assert report["check"]["equal"] is True
    assert report["plan"][0]["kernel_block_size"] == 4
    moved = {move["kind"]: move["num_blocks"] for move in report["moves"]}
    assert moved["swap_out"] == moved["swap_in"] == report["story"]["swapped"]["num_blocks"]
    assert moved["copy"] > 0
    assert all(move["bytes_per_s"] > 0 and move["contiguous_bytes_per_s"] > 0 for move in report["moves"])
    # who forces a backend compares backends, so its own copies move the blocks
    assert {move["record"] for move in report["moves"]} == {"torch-gather-scatter"}


def test_decode_speed_goes_on_where_one_way_fails(demo, capsys, monkeypatch):
    from cachecore_cpu.backend import CpuBackend
    from paged_kernels import KERNELS
    from smollm2_demo import decode_speed

    attention, store = KERNELS["defined"]()
    monkeypatch.setattr(CpuBackend, "paged_decode_attention", staticmethod(attention), raising=False)
    monkeypatch.setattr(CpuBackend, "store_decode_tokens", staticmethod(store), raising=False)
    monkeypatch.setattr(decode_speed, "LOADS", (decode_speed.Load(1, 9, 5), decode_speed.Load(2, 9, 5)))
    monkeypatch.setattr(decode_speed, "DTYPE", torch.float32)

    assert demo("--json") == 0

    found = json.loads(capsys.readouterr().out)["decode_speed"]
    rows = {(row["num_sequences"], row["way"]): row for row in found["rows"]}
    assert len(rows) == 2 * 10
    failed = {way for (_, way), row in rows.items() if "error" in row}
    assert failed == {way for _, way in rows if way.endswith("CUDA graph")}
    assert all("graphs are for CUDA" in row["error"] for row in rows.values() if "error" in row)
    worked = {key: row for key, row in rows.items() if "error" not in row}
    assert all(row["difference"] < 1e-5 and row["tokens_per_s"] > 0 for row in worked.values())
    assert all(row["paths"] == ["paged"] for (_, way), row in worked.items() if "paged" in way)


def test_one_wrong_value_exits_1(demo, capsys):
    assert demo("--inject-fault") == 1

    assert (
        "LOGITS DIFFER from plain transformers, first in call 9 (sampling, after the swap)" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "warp"], "no backend serves warp"),
        (["--backend", "nobody"], "nobody"),
        (["--block-size", "8", "--kernel-block-size", "3"], "no positive multiple of kernel_block_size 3"),
    ],
)
def test_what_cannot_be_served_exits_2(arguments, message, demo, capsys):
    assert demo(*arguments) == 2

    assert message in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--tokens", "0"], ["--tokens", "some"], ["--unknown"], ["--out", "file"]])
def test_wrong_usage_exits_2(arguments, demo, tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(SystemExit) as stopped:
        demo(*arguments)

    assert stopped.value.code == 2


def hear_ctrl_c() -> None:
    """A shell's background job ignores the signal, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_exits_130_and_leaves_nothing(tmp_path):
    arguments = [sys.executable, str(EXAMPLES / "smollm2.py"), "--model", "tiny", "--tokens", "150"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        arguments,
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,  # noqa: PLW1509  # it calls one function that takes no lock
    ) as process:
        assert process.stderr is not None
        seen = next(line for line in process.stderr if "greedy decoding" in line)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert "..." in seen
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "interrupted; nothing was written"
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []
