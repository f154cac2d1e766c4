"""Which way a swap takes: measured on the device at hand, once, and kept.

A threshold tuned on one machine is wrong on the next, so there is none in the code.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median

import torch

from cachecore import BlockPairs, CopySegment, PlanError
from cachecore_cuda_triton.driver import copy_pieces
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import launch_copy, launch_copy_few, upload_ids
from cachecore_cuda_triton.pinned import pinned_pages
from cachecore_cuda_triton.pitched import PitchedCopies
from cachecore_cuda_triton.tiles import Run, tile_table

__all__ = ["DIRECT_PROGRAMS", "WAYS", "Calibration", "calibrate", "calibration", "calibration_file", "forced_way"]

WAYS = ("staged", "pitched", "direct")
"""What can be forced. A block that is one run goes *whole* where others go pitched: there are no rows to space."""

DIRECT_PROGRAMS = 16
"""Programs of the direct kernel: enough for the link, few enough to leave the model its multiprocessors."""

_RUNS = tuple(1 << power for power in range(11, 19))
"""Row lengths that are tried: 2 to 256 KiB."""

_PIECES = tuple(1 << power for power in range(14, 23))
"""Lengths that are tried of blocks that are one run: 16 KiB to 4 MiB."""

_SMALL = tuple(1 << power for power in range(16, 23))
"""Payloads that are tried directly: 64 KiB to 4 MiB."""

_ROWS = 64
_PITCH = 2 << 20
_PAYLOAD = 16 << 20

_IN_THE_WAY = 1.3
"""Staging must be this much faster alone: beside a busy model its kernels wait, which such a measurement cannot see."""


ONE_RUN = "a plan with LayoutHints(one_run_per_block=True) moves whole blocks"


@dataclass(frozen=True, slots=True)
class Calibration:
    """One direction: bytes a second of each way, by length where that counts, and the direct kernel's reach.

    ``pitched`` is told of rows and ``pieces`` of blocks that are one run, both by the copy engines alone.
    """

    staged: float
    pitched: Mapping[str, float]
    pieces: Mapping[str, float]
    direct_nbytes: int

    def takes_engines(self, length: int, *, one_run: bool) -> bool:
        """Whether runs of ``length`` bytes go by the engines alone: staging is taken where it is clearly faster."""
        return _IN_THE_WAY * self._engines(length, one_run=one_run) >= self.staged

    def way(self, runs: Sequence[tuple[int, int]]) -> tuple[str, str]:
        """The way for blocks made of ``(run length, runs)``, and the reason."""
        one_run = len(runs) == 1 and runs[0][1] == 1
        block = sum(length * count for length, count in runs)
        seconds = sum(length * count / self._engines(length, one_run=one_run) for length, count in runs if length)
        engines, staged = block / max(1e-9, seconds) / 1e9, self.staged / 1e9
        if one_run:
            way = "whole" if self.takes_engines(block, one_run=True) else "staged"
            return way, f"a block is one run; {engines:.1f} GB/s measured of runs like this, {staged:.1f} of staging"
        ways = {"pitched" if self.takes_engines(length, one_run=False) else "staged" for length, _ in runs} or {
            "staged"
        }
        told = f"{engines:.1f} GB/s measured of pitched rows like these, {staged:.1f} of staging"
        return "+".join(sorted(ways)), told + (", row length by row length" if len(ways) > 1 else "") + f"; {ONE_RUN}"

    def _engines(self, length: int, *, one_run: bool) -> float:
        rates = self.pieces if one_run else self.pitched
        tried = _PIECES if one_run else _RUNS
        known = [run for run in tried if run <= length]
        return rates[str(known[-1] if known else tried[0])] * (1.0 if known else length / tried[0])


def forced_way() -> str | None:
    """The way that ``CACHECORE_CUDA_SWAP`` forces, if any."""
    forced = os.environ.get("CACHECORE_CUDA_SWAP")
    if forced and forced not in WAYS:
        raise PlanError(f"CACHECORE_CUDA_SWAP is {forced!r}; expected one of {', '.join(WAYS)}, or nothing")
    return forced or None


@cache
def calibration(device: torch.device, direction: str) -> Calibration:
    """What was measured on this device before, or is measured now (about a second)."""
    key = _device_key(device)
    kept = _load(key)
    if kept is None:
        kept = calibrate(device)
        _save(key, kept)
    return kept[direction]


def calibrate(device: torch.device) -> dict[str, Calibration]:
    """Measure every way in both directions."""
    rows = torch.empty(_ROWS * _PITCH, dtype=torch.uint8, device=device)
    staging = torch.empty(_PAYLOAD, dtype=torch.uint8, device=device)
    host = pinned_pages(_PAYLOAD, device=device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        return {direction: _Bench(direction, rows, staging, host, stream).calibration() for direction in ("out", "in")}


def calibration_file() -> Path:
    """Where measurements are kept: ``$XDG_CACHE_HOME/cachecore/cuda-triton.json``."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "cachecore" / "cuda-triton.json"


class _Bench:
    """Scattered rows of 16 KiB (or as asked) to or from one run of host memory, each way."""

    def __init__(
        self,
        direction: str,
        rows: torch.Tensor,
        staging: torch.Tensor,
        host: torch.Tensor,
        stream: torch.cuda.Stream,
    ) -> None:
        self._out = direction == "out"
        self._rows, self._staging, self._host, self._stream = rows, staging, host, stream
        self._run = 16 << 10
        count = _PAYLOAD // self._run
        self._ids = upload_ids(rows.device, array("q", range(count)), array("q", range(count)))
        self._gather = self._table(staging.data_ptr())
        self._straight = self._table(host.data_ptr())

    def calibration(self) -> Calibration:
        """Every way of this direction."""
        pitched = {str(run): self.rate(*self.engines(run, _ROWS)) for run in _RUNS}
        pieces = {str(run): self.rate(*self.engines(run, 1)) for run in _PIECES}
        reach = 0
        for nbytes in _SMALL:
            direct = self.rate(partial(self.direct, nbytes), nbytes)
            if direct < max(self.rate(partial(self.staged, nbytes), nbytes), pitched[str(self._run)]):
                break
            reach = nbytes
        return Calibration(self.rate(partial(self.staged, _PAYLOAD), _PAYLOAD), pitched, pieces, reach)

    def engines(self, run: int, rows: int) -> tuple[Callable[[], None], int]:
        """What queues blocks of ``rows`` rows of ``run`` bytes, as many as fit the payload, and their bytes."""
        stride = run if rows > 1 else 2 * run  # rows of neighbouring blocks are neighbours; whole blocks here are not
        segments = []
        for row in range(rows):
            device, host = (0, row * _PITCH, stride, run), (0, row * run, rows * run, run)
            segments.append(CopySegment(*device, *host, run, 1) if self._out else CopySegment(*host, *device, run, 1))
        ends = [self._rows.data_ptr()], [self._host.data_ptr()]
        copies = PitchedCopies(segments, *(ends if self._out else reversed(ends)))
        num_blocks = max(1, _PAYLOAD // (rows * run))
        pairs = BlockPairs(range(num_blocks), range(num_blocks))
        return lambda: copies.queue(pairs, self._stream.cuda_stream), num_blocks * rows * run

    def staged(self, nbytes: int) -> None:
        ids = self._ids[:, : nbytes // self._run].contiguous()
        if self._out:
            launch_copy(self._gather, ids, self._stream.cuda_stream)
        ends = self._host.data_ptr(), self._staging.data_ptr()
        dst, src = ends if self._out else reversed(ends)
        copy_pieces(*(array("Q", [value]) for value in (dst, src, nbytes)), self._stream.cuda_stream)
        if not self._out:
            launch_copy(self._gather, ids, self._stream.cuda_stream)

    def direct(self, nbytes: int) -> None:
        ids = self._ids[:, : nbytes // self._run].contiguous()
        launch_copy_few(self._straight, ids, self._stream.cuda_stream, num_programs=DIRECT_PROGRAMS)

    def rate(self, way: Callable[[], None], nbytes: int) -> float:
        """Bytes a second, from queuing to done as a caller sees it: the median of nine."""
        samples = []
        for repeat in range(12):
            self._stream.synchronize()
            started = time.perf_counter()
            way()
            self._stream.synchronize()
            if repeat > 2:
                samples.append(time.perf_counter() - started)
        return nbytes / median(samples)

    def _table(self, dense: int):  # type: ignore[no-untyped-def]  # a private detail of a measurement
        scattered = self._rows.data_ptr(), 2 * self._run
        src, dst = (scattered, (dense, self._run)) if self._out else ((dense, self._run), scattered)
        return tile_table([Run(src[0], dst[0], src[1], dst[1], self._run)], self._rows.device, TILE_NBYTES)


def _device_key(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.uuid}, CUDA {torch.version.cuda}"


def _load(key: str) -> dict[str, Calibration] | None:
    try:
        kept = json.loads(calibration_file().read_text())[key]
        found = {direction: Calibration(**kept[direction]) for direction in ("in", "out")}
        complete = all(
            set(one.pitched) == set(map(str, _RUNS)) and set(one.pieces) == set(map(str, _PIECES))
            for one in found.values()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # nothing was kept, or something unreadable: it is measured again
    return found if complete else None


def _save(key: str, measured: Mapping[str, Calibration]) -> None:
    path = calibration_file()
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        kept = {}
    kept[key] = {direction: asdict(one) for direction, one in measured.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".new").write_text(json.dumps(kept, indent=1))
        path.with_suffix(".new").replace(path)
    except OSError:
        return  # a home that cannot be written costs a measurement a process
