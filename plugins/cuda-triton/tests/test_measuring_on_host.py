"""The measurements of a calibration with streams that do everything at once: what is moved, within which memory."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from cachecore_cuda_triton import calibration, measuring
from cachecore_cuda_triton.calibration import Calibration
from host_driver import CPU, INTERPRETED, copy_pieces, host_driver

__all__ = ["host_driver"]

pytestmark = INTERPRETED

RUNS = [(4096, 2), (132, 4)]


class Filler:
    """Stands for the kernel that fills a device; remembers for how long it was asked to, each time."""

    def __init__(self) -> None:
        self.nanoseconds: list[int] = []

    def __getitem__(self, grid: tuple[int, ...]) -> object:
        assert grid == (2 * 2048 // measuring.OCCUPY_THREADS,)

        def launch(out: torch.Tensor, nanoseconds: int, **options: int) -> None:
            assert out.numel() == grid[0] * measuring.OCCUPY_THREADS
            self.nanoseconds.append(nanoseconds)

        return launch


@pytest.fixture
def filler(host_driver: None, monkeypatch: pytest.MonkeyPatch) -> Filler:
    """A device that is the host, with two multiprocessors."""
    stream = SimpleNamespace(synchronize=lambda: None, cuda_stream=0)
    properties = SimpleNamespace(multi_processor_count=2, max_threads_per_multi_processor=2048)
    for name, value in {
        "device": lambda device: nullcontext(),
        "stream": lambda stream: nullcontext(),
        "Stream": lambda device, priority=0: stream,
        "current_stream": lambda device: stream,
        "get_device_properties": lambda device: properties,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    found = Filler()
    monkeypatch.setattr(measuring, "occupy", found)
    monkeypatch.setattr(measuring, "copy_pieces", copy_pieces)
    monkeypatch.setattr(measuring, "pinned_pages", lambda nbytes, device: torch.empty(nbytes, dtype=torch.uint8))
    monkeypatch.setattr(measuring, "MEASURED_NBYTES", 1 << 18)
    monkeypatch.setattr(measuring, "_PITCH", 1 << 13)
    monkeypatch.setattr(measuring, "_SMALL", (1 << 15, 1 << 16))
    monkeypatch.setattr(measuring, "_BUSY_NS", 100_000)
    return found


@pytest.mark.parametrize("direction", ["out", "in"])
def test_every_way_is_measured(filler: Filler, direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = calibration._measure(CPU, direction, None, {"pitched": {length for length, _ in RUNS}})
    both = calibration._measure(CPU, direction, rows, {"whole": {1 << 16}})

    assert isinstance(rows, Calibration)
    assert set(rows.pitched) == {132, 4096}
    assert (rows.whole, set(both.whole), both.pitched) == ({}, {1 << 16}, rows.pitched)
    assert (both.staged, both.staged_beside, both.direct_nbytes) == (
        rows.staged,
        rows.staged_beside,
        rows.direct_nbytes,
    )
    assert all(rate > 0 for rate in (rows.staged, rows.staged_beside, *rows.pitched.values(), *both.whole.values()))
    assert filler.nanoseconds == [100_000] * (1 + 4 * 27)  # one that compiles, four before each of three times nine


def test_staging_beside_a_model_is_an_average_over_its_kernels(filler: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([value for phase in range(9) for value in (1e-3 * phase**2, 1e-3 * phase**2, 9.0)])  # one is disturbed
    asked = []
    monkeypatch.setattr(measuring.Bench, "_beside", lambda bench, fill, phase: (asked.append(phase), next(taken))[1])

    found = measuring.Bench(CPU, "out").staged_beside()

    assert asked == [phase for phase in range(9) for _ in range(3)]
    assert found == pytest.approx(measuring.MEASURED_NBYTES / (204e-3 / 9))  # 0 + 1 + 4 + ... + 64 ms; the median is 16


def test_staging_begins_at_every_moment_of_a_kernel(filler: Filler, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, spun = [], []
    monkeypatch.setattr(measuring, "_spin", spun.append)
    monkeypatch.setattr(measuring.Bench, "_once", lambda bench, way: (begun.append(len(filler.nanoseconds)), 1.0)[1])

    measuring.Bench(CPU, "out").staged_beside()

    assert spun == pytest.approx([phase * 100e-6 / 9 for phase in range(9) for _ in range(3)])
    assert begun == [1 + 4 * number for number in range(1, 28)]  # one compiles; four are queued before each


@pytest.mark.parametrize("direction", ["out", "in"])
def test_staging_moves_every_run(filler: Filler, direction: str) -> None:
    bench = measuring.Bench(CPU, direction)
    for tensor in (bench._rows, bench._host):
        tensor.random_(0, 256)
    scattered = bench._rows[: 2 * measuring.MEASURED_NBYTES].view(-1, 2, measuring._RUN)[:, 0]
    expected = (scattered if direction == "out" else bench._host).clone().flatten()

    bench._staged(measuring.MEASURED_NBYTES)

    assert torch.equal((bench._host if direction == "out" else scattered).flatten(), expected)
