"""How fast each way of a swap is on one device: what the calibration decides by."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from functools import partial
from statistics import fmean, median

import torch

from cachecore import BlockPairs, CopySegment
from cachecore_cuda_triton.by_engines import EngineCopies
from cachecore_cuda_triton.driver import copy_pieces
from cachecore_cuda_triton.kernels import OCCUPY_THREADS, TILE_NBYTES, occupy
from cachecore_cuda_triton.launch import launch_copy, launch_copy_few, upload_ids
from cachecore_cuda_triton.pinned import pinned_pages
from cachecore_cuda_triton.tiles import Run, TileTable, tile_table

__all__ = ["DIRECT_PROGRAMS", "MEASURED_NBYTES", "Bench", "measured_length", "spread"]

DIRECT_PROGRAMS = 16
"""Programs of the direct kernel: enough for the link, few enough to leave the model its multiprocessors."""

MEASURED_NBYTES = 32 << 20
"""Bytes of a measurement: a swap of some ten blocks."""

_ROWS = 64
_PITCH = 1 << 20
_MOST_OPS = 4096
"""Operations of the driver in one measurement: very short runs are a smaller payload then, and slow enough to tell."""

_RUN = 16 << 10
"""Bytes of the scattered runs that are staged."""

_SMALL = tuple(1 << power for power in range(16, 23))
"""Payloads that are tried directly: 64 KiB to 4 MiB."""

_BUSY_NS, _NUM_BUSY = 1_000_000, 4
"""Nanoseconds of one kernel that fills the device, as a large product takes, and how many follow one another."""

_PHASES, _ROUNDS = 9, 3
"""Moments of such a kernel at which staging begins, and how often at each."""


def measured_length(nbytes: int, *, one_run: bool) -> int:
    """The length that stands for runs of ``nbytes``: their own, up to what a measurement moves."""
    return min(nbytes, MEASURED_NBYTES if one_run else _PITCH)


def spread(run: int, rows: int, payload: int, *, out: bool) -> tuple[list[CopySegment], int]:
    """Segments of at most ``rows`` rows of ``run`` bytes, and as many blocks of them as fit ``payload``."""
    rows = max(1, min(rows, payload // run))
    num_blocks = max(1, min(payload // (rows * run), _MOST_OPS))
    stride = run if rows > 1 else 2 * run  # rows of neighbouring blocks are neighbours; whole blocks here are not
    segments = []
    for row in range(rows):
        device, host = (0, row * _PITCH, stride, run), (0, row * run, rows * run, run)
        segments.append(CopySegment(*device, *host, run, 1) if out else CopySegment(*host, *device, run, 1))
    return segments, num_blocks


class Bench:
    """One direction of one device: 64 MiB of scattered rows, 32 MiB of staging, and as much page-locked memory."""

    def __init__(self, device: torch.device, direction: str) -> None:
        self._out = direction == "out"
        self._device = device
        with torch.cuda.device(device), torch.inference_mode(False):
            self._rows = torch.empty(_ROWS * _PITCH, dtype=torch.uint8, device=device)
            self._staging = torch.empty(MEASURED_NBYTES, dtype=torch.uint8, device=device)
            self._host = pinned_pages(MEASURED_NBYTES, device=device)
            self._stream, self._side = torch.cuda.Stream(device, priority=-5), torch.cuda.Stream(device)
            count = MEASURED_NBYTES // _RUN
            self._ids = upload_ids(device, array("q", range(count)), array("q", range(count)))
            self._gather = self._table(self._staging.data_ptr())
            self._straight = self._table(self._host.data_ptr())
            torch.cuda.current_stream(device).synchronize()

    def close(self) -> None:
        """Wait for what is under way: it may still touch memory that goes with this bench."""
        self._side.synchronize()
        self._stream.synchronize()

    def pitched(self, run: int) -> float:
        """Bytes a second of rows of ``run`` bytes, 64 a block."""
        return self._rate(*self._engines(run, _ROWS))

    def whole(self, run: int) -> float:
        """Bytes a second of blocks that are one run of ``run`` bytes."""
        return self._rate(*self._engines(run, 1))

    def staged(self) -> float:
        """Bytes a second of a gather or scatter and one transfer."""
        return self._rate(partial(self._staged, MEASURED_NBYTES), MEASURED_NBYTES)

    def staged_beside(self) -> float:
        """The same while kernels fill the device one after another, on average over the moments of one of them."""
        with torch.cuda.device(self._device):
            fill = self._filler()
            phases = [median([self._beside(fill, phase) for _ in range(_ROUNDS)]) for phase in range(_PHASES)]
        return MEASURED_NBYTES / fmean(phases)  # the wait falls from a kernel's length to nothing: no median tells it

    def direct_reach(self) -> int:
        """The largest payload that the direct kernel moves faster than staging does."""
        reach = 0
        for nbytes in _SMALL:
            if self._rate(partial(self._direct, nbytes), nbytes) < self._rate(partial(self._staged, nbytes), nbytes):
                break
            reach = nbytes
        return reach

    def _engines(self, run: int, rows: int) -> tuple[Callable[[], None], int]:
        """What queues a measurement's blocks of ``rows`` rows of ``run`` bytes, and their bytes."""
        segments, num_blocks = spread(run, rows, MEASURED_NBYTES, out=self._out)
        ends = [self._rows.data_ptr()], [self._host.data_ptr()]
        copies = EngineCopies(segments, *(ends if self._out else reversed(ends)))
        pairs = BlockPairs(range(num_blocks), range(num_blocks))
        return lambda: copies.queue(pairs, self._stream.cuda_stream), num_blocks * len(segments) * run

    def _staged(self, nbytes: int) -> None:
        ids, stream = self._ids[:, : nbytes // _RUN].contiguous(), self._stream.cuda_stream
        if self._out:
            launch_copy(self._gather, ids, stream)
        ends = self._host.data_ptr(), self._staging.data_ptr()
        dst, src = ends if self._out else reversed(ends)
        copy_pieces(*(array("Q", [value]) for value in (dst, src, nbytes)), stream)
        if not self._out:
            launch_copy(self._gather, ids, stream)

    def _direct(self, nbytes: int) -> None:
        ids = self._ids[:, : nbytes // _RUN].contiguous()
        launch_copy_few(self._straight, ids, self._stream.cuda_stream, num_programs=DIRECT_PROGRAMS)

    def _rate(self, way: Callable[[], None], nbytes: int) -> float:
        """Bytes a second, from queuing to done as a caller sees it: the median of nine."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            return nbytes / median([self._once(way) for _ in range(12)][3:])

    def _once(self, way: Callable[[], None]) -> float:
        self._stream.synchronize()
        started = time.perf_counter()
        with torch.cuda.stream(self._stream):
            way()
        self._stream.synchronize()
        return time.perf_counter() - started

    def _beside(self, fill: Callable[[], None], phase: int) -> float:
        """Seconds of a staged measurement begun at ``phase`` of a kernel that fills the device."""
        self._side.synchronize()
        for _ in range(_NUM_BUSY):
            fill()
        _spin(_BUSY_NS * phase / _PHASES / 1e9)
        return self._once(partial(self._staged, MEASURED_NBYTES))

    def _filler(self) -> Callable[[], None]:
        """What queues a kernel of ``_BUSY_NS`` that leaves no room for another, compiled and loaded."""
        properties = torch.cuda.get_device_properties(self._device)
        count = properties.multi_processor_count * (properties.max_threads_per_multi_processor // OCCUPY_THREADS)
        out = self._filled = torch.empty(count * OCCUPY_THREADS, dtype=torch.int64, device=self._device)

        def fill() -> None:
            with torch.cuda.stream(self._side):
                occupy[(count,)](out, _BUSY_NS, THREADS=OCCUPY_THREADS, num_warps=OCCUPY_THREADS // 32)

        fill()
        self._side.synchronize()
        return fill

    def _table(self, dense: int) -> TileTable:
        scattered = self._rows.data_ptr(), 2 * _RUN
        src, dst = (scattered, (dense, _RUN)) if self._out else ((dense, _RUN), scattered)
        return tile_table([Run(src[0], dst[0], src[1], dst[1], _RUN)], self._device, TILE_NBYTES)


def _spin(seconds: float) -> None:
    """Sleeping is too coarse here."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
