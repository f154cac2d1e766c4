"""What is measured on a real device, and that it is measured once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cachecore_cuda_triton import calibration, measuring

pytestmark = pytest.mark.gpu

RUNS = {"rows": [(65536, 1), (528, 2), (1 << 21, 1)], "one run": [(655_360, 1)], "long": [(1 << 26, 1)]}


@pytest.mark.parametrize("direction", ["out", "in"])
def test_every_way_is_measured_once(
    gpu: torch.device, direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CACHECORE_CUDA_SWAP", raising=False)
    monkeypatch.setattr(calibration, "_known", {})

    first = {name: calibration.choose(gpu, direction, runs) for name, runs in RUNS.items()}

    found = calibration._known[calibration._device_key(gpu), direction]
    assert set(found.pitched) == {528, 65536, 1 << 20}
    assert set(found.whole) == {655_360, 32 << 20}
    # Nothing is faster than a link of today, and nothing slower than one of twenty years ago.
    assert all(1e7 < rate < 1e12 for rate in (found.staged, *found.pitched.values(), *found.whole.values()))
    assert 1e7 < found.staged_beside < 1.5 * found.staged

    monkeypatch.setattr(calibration, "Bench", None)  # none is made any more
    monkeypatch.setattr(calibration, "_known", {})
    assert {name: calibration.choose(gpu, direction, runs) for name, runs in RUNS.items()} == first


def test_the_filler_leaves_no_room_until_it_ends(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_BUSY_NS", 50_000_000)
    bench = measuring.Bench(gpu, "out")
    fill, one = bench._filler(), torch.zeros(1, device=gpu)
    with torch.cuda.stream(bench._stream):
        one += 1  # loads the kernel
    torch.cuda.synchronize(gpu)

    fill()
    filled = bench._side.record_event()
    measuring._spin(5e-3)
    with torch.cuda.stream(bench._stream):
        one += 1
    bench._stream.synchronize()

    assert filled.query()  # the addition waited for the filler, though its stream goes first
    bench.close()
