"""``ByteBackend``: stdlib bytearrays. The oracle every backend is compared with, and the null device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from operator import mul
from typing import Any

from cachecore.backend import (
    COMPLETED,
    HOST,
    BackendInfo,
    CacheAllocation,
    CacheBackend,
    Completion,
    MemoryInfo,
    Region,
)
from cachecore.copying import BlockCopyInfo, CopySide
from cachecore.device import DeviceSpec
from cachecore.errors import AllocationError, BlockIndexError, EngineStateError, LayoutError
from cachecore.layout import CacheLayout, RowStrides
from cachecore.policy import LayoutPolicy, StandardLayoutPolicy
from cachecore.schema import CacheTensorSpec
from cachecore.transfer import ByteCopy

__all__ = ["BYTE_BACKEND", "BYTE_COPY", "ByteBackend", "ByteTensor"]


class ByteTensor:
    """Strided bytes of a pool, read and written as dense C-order bytes.

    ``shape`` counts elements; ``strides`` are bytes.
    """

    __slots__ = ("itemsize", "pool", "shape", "start", "strides")

    def __init__(
        self, pool: memoryview, start: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
    ) -> None:
        self.pool = pool
        self.start = start
        self.shape = shape
        self.strides = strides
        self.itemsize = itemsize

    def tobytes(self) -> bytes:
        """A dense copy."""
        return b"".join(bytes(self.pool[at : at + length]) for at, length in self._runs())

    def frombytes(self, data: bytes) -> None:
        """Overwrite every element from dense bytes."""
        runs = list(self._runs())
        if len(data) != sum(length for _, length in runs):
            raise LayoutError(f"{len(data)} bytes for a tensor of {sum(length for _, length in runs)}")
        done = 0
        for at, length in runs:
            self.pool[at : at + length] = data[done : done + length]
            done += length

    def _runs(self) -> list[tuple[int, int]]:
        run, axes = self.itemsize, len(self.shape)
        while axes and self.strides[axes - 1] == run:
            axes -= 1
            run *= self.shape[axes]
        if not run or 0 in self.shape:
            return []
        places = product(*map(range, self.shape[:axes]))
        return [(self.start + sum(map(mul, place, self.strides)), run) for place in places]


class ByteBackend(CacheBackend[ByteTensor]):
    """Everything a backend must do, in plain Python and without an array library."""

    name = "bytes"

    def __init__(self, policy: LayoutPolicy | None = None, *, capacity_nbytes: int = 1 << 34) -> None:
        self.policy = policy or StandardLayoutPolicy()
        self.capacity_nbytes = capacity_nbytes
        self.taken_nbytes = 0

    def allocate(
        self, layout: CacheLayout, num_entries: int, device: DeviceSpec, *, pinned: bool = False
    ) -> CacheAllocation[ByteTensor]:
        """Take one bytearray a pool."""
        needed = layout.reserved_nbytes(num_entries)
        free = self.capacity_nbytes - self.taken_nbytes
        if needed > free:
            raise AllocationError(
                f"{needed} bytes of {layout.kind} layout on {device}, but {free} of {self.capacity_nbytes} are free",
                needed_nbytes=needed,
                free_nbytes=free,
            )
        buffers = tuple(bytearray(layout.buffer_nbytes(number, num_entries)) for number, _ in enumerate(layout.pools))
        self.taken_nbytes += needed
        pools = tuple(
            _pool(memoryview(buffer)[: layout.pool_nbytes(number, num_entries)], layout, number, num_entries)
            for number, buffer in enumerate(buffers)
        )
        kind = HOST if device.type == "cpu" else device.type
        return CacheAllocation(layout, num_entries, device, kind, buffers, pools)

    def adopt(self, buffer: Any, layout: CacheLayout, num_entries: int) -> CacheAllocation[ByteTensor]:
        """Use a writable buffer, pools one after another."""
        view = memoryview(buffer).cast("B")
        if view.readonly or len(view) < layout.nbytes(num_entries):
            raise AllocationError(
                f"a buffer of {len(view)} bytes{' (read-only)' if view.readonly else ''} cannot hold "
                f"{layout.nbytes(num_entries)}"
            )
        pools, start = [], 0
        for number, _ in enumerate(layout.pools):
            nbytes = layout.pool_nbytes(number, num_entries)
            pools.append(_pool(view[start : start + nbytes], layout, number, num_entries))
            start += nbytes
        return CacheAllocation(layout, num_entries, DeviceSpec("null"), "null", (view,), tuple(pools), owned=False)

    def free(self, allocation: CacheAllocation[ByteTensor]) -> None:
        """Forget the buffers."""
        if not allocation.freed and allocation.owned:
            self.taken_nbytes -= allocation.layout.reserved_nbytes(allocation.num_entries)
        allocation.freed = True
        allocation.buffers = allocation.pools = ()

    def view(
        self, allocation: CacheAllocation[ByteTensor], spec_index: int, spec: CacheTensorSpec
    ) -> ByteTensor | None:
        """All rows, when they are equally spaced."""
        at = allocation.layout.tensor_strides(spec_index, allocation.num_entries)
        return None if at is None else _tensor(allocation, at, spec, spec.num_rows)

    def row_view(
        self, allocation: CacheAllocation[ByteTensor], spec_index: int, spec: CacheTensorSpec, row: int
    ) -> ByteTensor:
        """One row."""
        return _tensor(allocation, allocation.layout.row_strides(spec_index, row, allocation.num_entries), spec, None)

    def memory(self, device: DeviceSpec) -> MemoryInfo:
        """Of the capacity given."""
        return MemoryInfo(self.capacity_nbytes - self.taken_nbytes, self.capacity_nbytes)

    def capabilities(self) -> Mapping[str, str | None]:
        """A plain host device."""
        return {
            "pinned_host": "plain bytearrays cannot be page-locked",
            "device_ids": "there is no device to hold ids",
            "graph_capture": "there are no graphs",
            "async_copy": "copies run on the host, in the caller",
            "byte_addressable": None,
        }

    def zero(self, allocation: CacheAllocation[ByteTensor], entries: Sequence[int]) -> Completion:
        """Zero the entries of every pool."""
        pools = _live_pools(allocation)
        for entry in entries:
            if not 0 <= entry < allocation.num_entries:
                raise BlockIndexError(
                    f"entry {entry} is out of range; the allocation has {allocation.num_entries}",
                    block=entry,
                    limit=allocation.num_entries,
                )
        for pool, spec in zip(pools, allocation.layout.pools, strict=True):
            for outer in range(spec.outer):
                for entry in entries:
                    at = (outer * allocation.num_entries + entry) * spec.inner
                    pool.pool[at : at + spec.inner] = bytes(spec.inner)
        return COMPLETED

    def read(self, allocation: CacheAllocation[ByteTensor], pool: int, offset: int, nbytes: int) -> bytes:
        """Bytes of one pool."""
        return bytes(_byte_range(allocation, pool, offset, nbytes))

    def write(self, allocation: CacheAllocation[ByteTensor], pool: int, offset: int, data: bytes) -> None:
        """Overwrite bytes of one pool."""
        _byte_range(allocation, pool, offset, len(data))[:] = data

    def regions(self, allocation: CacheAllocation[ByteTensor]) -> tuple[Region, ...]:
        """Python bytearrays have no address to register; offsets from zero stand in."""
        pools = enumerate(_live_pools(allocation))
        return tuple(Region(number, 0, len(pool.pool)) for number, pool in pools if pool.pool)


def _live_pools(allocation: CacheAllocation[ByteTensor]) -> tuple[ByteTensor, ...]:
    if allocation.freed:
        raise EngineStateError("this allocation was freed; its bytes are no longer there")
    return allocation.pools


def _byte_range(allocation: CacheAllocation[ByteTensor], pool: int, offset: int, nbytes: int) -> memoryview:
    """Bytes of one pool, aliasing it; a memoryview would cut a range that lies outside without a word."""
    pools = _live_pools(allocation)
    if not 0 <= pool < len(pools):
        raise BlockIndexError(f"pool {pool} is out of range; the allocation has {len(pools)} pools", block=pool)
    view = pools[pool].pool
    if offset < 0 or nbytes < 0 or offset + nbytes > len(view):
        raise BlockIndexError(
            f"bytes {offset} to {offset + nbytes} do not lie within the {len(view)} bytes of pool {pool}", block=offset
        )
    return view[offset : offset + nbytes]


def _pool(view: memoryview, layout: CacheLayout, number: int, num_entries: int) -> ByteTensor:
    spec = layout.pools[number]
    strides = (num_entries * spec.inner, spec.inner, 1)
    return ByteTensor(view, 0, (spec.outer, num_entries, spec.inner), strides, 1)


def _tensor(
    allocation: CacheAllocation[ByteTensor], at: RowStrides, spec: CacheTensorSpec, num_rows: int | None
) -> ByteTensor:
    """Rows (when asked for), entries, pages of an entry (when there are several), then the payload."""
    shape = [allocation.num_entries]
    strides = [at.entry]
    if num_rows is not None:
        shape.insert(0, num_rows)
        strides.insert(0, at.row)
    if allocation.layout.pages_per_entry > 1:
        shape.append(allocation.layout.pages_per_entry)
        strides.append(at.page)
    dense: list[int] = []
    step = spec.desc.itemsize
    for extent in reversed(spec.shape):
        dense.insert(0, step)
        step *= extent
    pool = _live_pools(allocation)[at.pool].pool
    return ByteTensor(pool, at.start, (*shape, *spec.shape), (*strides, *dense), spec.desc.itemsize)


def _both_bytes(src: CopySide, dst: CopySide) -> str | None:
    if src.backend == dst.backend == "bytes":
        return None
    return f"serves the byte backend alone, not {src.backend} to {dst.backend}"


BYTE_BACKEND = BackendInfo(
    name="bytes",
    device_types=("null",),
    priority=0,
    probe=lambda device: None,
    load_policy=StandardLayoutPolicy,
    load=ByteBackend,
)
"""The null device, always there: plans and engines can be tried without any plugin."""

BYTE_COPY = BlockCopyInfo("bytes", 0, _both_bytes, ByteCopy)
"""The null device's copy."""
