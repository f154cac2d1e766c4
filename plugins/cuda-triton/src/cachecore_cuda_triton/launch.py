"""Launching the kernels: compiled once, then called directly, since a launch through the decorator costs 15 µs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from threading import local
from typing import Any

import torch
import triton
from torch import Tensor

from cachecore_cuda_triton.kernels import NUM_WARPS, TILE_NBYTES, copy_few, copy_tiles, zero_tiles
from cachecore_cuda_triton.submission import IdRing, id_ring
from cachecore_cuda_triton.tiles import TileTable

__all__ = [
    "compile_ahead",
    "copy_host_pairs",
    "current_stream",
    "launch_copy",
    "launch_copy_at",
    "launch_copy_few",
    "launch_zero",
    "on_device",
    "on_stream",
    "upload",
    "upload_ids",
]

_MAX_AXIS_Y = 65535
"""Programs on grid axis y. Source: CUDA C++ Programming Guide, technical specifications table."""


def compile_ahead(table: TileTable, which: str) -> None:
    """Compile ``"copy"`` or ``"few"`` for ``table`` now, so that no step waits for a compiler."""
    if table.num_tiles and table.device.type == "cuda":
        _compiled(_order(table) if which == "copy" else which, table.widths, table.device)


def launch_copy(table: TileTable, ids: Tensor, stream: int, *, start: int = 0, count: int | None = None) -> None:
    """Copy on ``stream`` (a raw handle); ``ids`` is a contiguous ``int64[2, n]``: sources, destinations.

    ``start`` and ``count`` take some of the pairs only.
    """
    num_pairs = ids.shape[1]
    count = num_pairs - start if count is None else count
    if not table.num_tiles or not count:
        return
    if table.device.type != "cuda":
        some = ids[:, start : start + count].contiguous()
        for inner, outer, first in _grids(table, count):
            copy_tiles[inner, outer](
                *(table.tiles, some[0], some[1], first),
                WIDTHS=table.widths,
                TILE=TILE_NBYTES,
                TILES_FIRST=table.tiles_first,
            )
        return
    src = ids.data_ptr() + 8 * start
    launch_copy_at(table, src, src + 8 * num_pairs, count, stream)


def launch_copy_at(table: TileTable, src_ids: int, dst_ids: int, count: int, stream: int) -> None:
    """As :func:`launch_copy` with the device addresses of ``count`` sources and destinations."""
    launch = _compiled(_order(table), table.widths, table.device)
    for inner, outer, first in _grids(table, count):
        launch(
            inner, outer, stream, table.address, src_ids, dst_ids, first, table.widths, TILE_NBYTES, table.tiles_first
        )


def _order(table: TileTable) -> str:
    return "tiles" if table.tiles_first else "pairs"


def _grids(table: TileTable, count: int) -> Sequence[tuple[int, int, int]]:
    """Axes x and y of the grids of a copy of ``count`` pairs, and where y begins: that axis alone has a limit."""
    inner, outer = (table.num_tiles, count) if table.tiles_first else (count, table.num_tiles)
    if outer <= _MAX_AXIS_Y:
        return ((inner, outer, 0),)
    starts = range(0, outer, _MAX_AXIS_Y)
    return [(inner, min(_MAX_AXIS_Y, outer - first), first) for first in starts]


def copy_host_pairs(
    table: TileTable, src: array[int], dst: array[int], stream: int, *, num_programs: int | None = None
) -> None:
    """Upload ``array('q')`` ids without waiting, and copy; with ``num_programs`` as :func:`launch_copy_few` does."""
    if table.device.type == "cuda" and table.num_tiles and num_programs is None:
        ids = upload(table.device, stream, src, dst)
        try:
            launch_copy_at(table, ids.address, ids.address + 8 * len(src), len(src), stream)
        finally:
            ids.release(stream)
    elif num_programs is None:
        launch_copy(table, upload_ids(table.device, src, dst), stream)
    else:
        with on_stream(table.device, stream):
            launch_copy_few(table, upload_ids(table.device, src, dst), stream, num_programs=num_programs)


def launch_copy_few(table: TileTable, ids: Tensor, stream: int, *, num_programs: int) -> None:
    """As :func:`launch_copy` with a bounded number of programs, which leaves the rest of the device to others."""
    num_pairs = ids.shape[1]
    total = table.num_tiles * num_pairs
    if not total:
        return
    programs = min(total, num_programs)
    counts = table.num_tiles, total
    if table.device.type != "cuda":
        copy_few[programs, 1, 1](table.tiles, ids[0], ids[1], *counts, WIDTHS=table.widths, TILE=TILE_NBYTES)
        return
    src = ids.data_ptr()
    launch = _compiled("few", table.widths, table.device)
    launch(programs, 1, stream, table.address, src, src + 8 * num_pairs, *counts, table.widths, TILE_NBYTES)


def launch_zero(table: TileTable, ids: Tensor, stream: int) -> None:
    """Zero the tiles of every entry in ``ids`` (contiguous ``int64[n]``) on ``stream``."""
    if not table.num_tiles or not ids.numel():
        return
    if table.device.type != "cuda":
        zero_tiles[(ids.numel(), table.num_tiles)](table.tiles, ids, 0, WIDTHS=table.widths, TILE=TILE_NBYTES)
        return
    launch = _compiled("zero", table.widths, table.device)
    for first in range(0, table.num_tiles, _MAX_AXIS_Y):
        tiles = min(_MAX_AXIS_Y, table.num_tiles - first)
        launch(ids.numel(), tiles, stream, table.address, ids.data_ptr(), first, table.widths, TILE_NBYTES)


@cache
def _compiled(which: str, widths: int, device: torch.device) -> Callable[..., object]:
    """``launch(x, y, stream, *arguments)`` of the kernel for one set of widths, compiled and loaded.

    Triton's own launcher, called without the closure and the hooks that ``kernel[grid]`` makes each time.
    """
    some = torch.empty(2, dtype=torch.int64, device=device)
    options = {"WIDTHS": widths, "TILE": TILE_NBYTES, "num_warps": NUM_WARPS, "grid": (1,)}
    with torch.cuda.device(device):
        if which in ("tiles", "pairs"):
            kernel = copy_tiles.warmup(some, some, some, 0, TILES_FIRST=which == "tiles", **options)
        elif which == "few":
            # Above 32 bits, so that it is compiled for 64.
            kernel = copy_few.warmup(some, some, some, 1, 1 << 40, **options)
        else:
            kernel = zero_tiles.warmup(some, some, 0, **options)
        run = kernel.run  # loads it
    function, packed = kernel.function, kernel.packed_metadata

    def launch(x: int, y: int, stream: int, *arguments: int) -> None:
        run(x, y, 1, stream, function, packed, None, None, None, *arguments)

    return launch


_thread = local()


class Upload:
    """Ids on their way to ``address``; say :meth:`release` once the work that reads them is queued."""

    __slots__ = ("_held", "_ring", "_slot", "address")

    def __init__(self, address: int, ring: IdRing | None, slot: int, held: Tensor | None) -> None:
        self.address = address
        self._ring, self._slot, self._held = ring, slot, held

    def release(self, stream: int) -> None:
        """What is queued on ``stream`` by now is the last that reads them."""
        if self._ring is not None:
            self._ring.release(self._slot, stream)


def upload(device: torch.device, stream: int, *rows: array[int]) -> Upload:
    """Equally long rows of host ids on the device, one after another, queued on ``stream`` without waiting."""
    ring = id_ring(device)
    found = ring.upload(stream, *rows)
    if found is not None:
        return Upload(found[1], ring, found[0], None)
    with on_stream(device, stream):  # many ids, or many uploads under way
        ids = upload_ids(device, *rows)
    return Upload(ids.data_ptr(), None, 0, ids)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes ``device`` the current one, whose default stream is meant by handle 0, and which a kernel is loaded on."""
    if device.type != "cuda" or device.index in (None, torch.cuda.current_device()):
        return nullcontext()
    return torch.cuda.device(device)


def on_stream(device: torch.device, stream: int) -> AbstractContextManager[object]:
    """Makes the stream with this handle the current one of torch."""
    if stream == current_stream(device):
        return nullcontext()
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))


def upload_ids(device: torch.device, *rows: array[int]) -> Tensor:
    """Rows of host ids as ``int64[rows, n]`` on the device, through page-locked memory: the host never waits."""
    listed: Any = rows[0] if len(rows) == 1 else rows[0] + rows[1]
    ids = torch.frombuffer(listed, dtype=torch.int64).view(len(rows), -1)
    if device.type != "cuda":
        return ids.clone()
    return ids.pin_memory().to(device, non_blocking=True)


def current_stream(device: torch.device) -> int:
    """The caller's current stream as a raw handle; 0 where there are none."""
    if device.type != "cuda":
        return 0
    if not hasattr(_thread, "attached"):
        # A new thread has no CUDA context until torch's runtime is asked something; driver calls alone bring none.
        torch.cuda.current_stream(device).query()
        _thread.attached = True
    return int(triton.runtime.driver.active.get_current_stream(device.index))
