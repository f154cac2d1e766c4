"""What is measured on a real device, and that it is measured once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cachecore_cuda_triton import calibration

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
