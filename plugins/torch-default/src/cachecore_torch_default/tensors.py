"""Tensors over the pools of an allocation: typed views of rows, and plain byte ranges."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from ctypes import c_char

import torch
from torch import Tensor

from cachecore import BlockIndexError, CacheAllocation, CacheTensorSpec, EngineStateError, LayoutError, PlanError
from cachecore_torch_default.pinned import upload

__all__ = ["byte_range", "bytes_of", "ids_on", "live_pools", "neighbours", "synchronize", "typed_view"]


def live_pools(allocation: CacheAllocation[Tensor]) -> tuple[Tensor, ...]:
    """The pools; :class:`EngineStateError` once they are freed."""
    if allocation.freed:
        raise EngineStateError("this allocation was freed; its tensors are no longer valid")
    return allocation.pools


def typed_view(
    allocation: CacheAllocation[Tensor], spec_index: int, spec: CacheTensorSpec, row: int | None = None
) -> Tensor | None:
    """``([rows,] entries, [pages,] *shape)`` of one row or all, over one pool.

    None when all are asked for and stand at no equal distance. A spec of zero bytes gets an empty tensor.
    """
    pools, layout = live_pools(allocation), allocation.layout
    if row is None:
        strides = layout.tensor_strides(spec_index, allocation.num_entries)
    else:
        strides = layout.row_strides(spec_index, row, allocation.num_entries)
    if strides is None:
        return None
    axes = [(spec.num_rows, strides.row)] if row is None else []
    axes.append((allocation.num_entries, strides.entry))
    if layout.pages_per_entry > 1:
        axes.append((layout.pages_per_entry, strides.page))
    dtype, step = torch_dtype(spec), spec.page_nbytes
    shape = tuple(count for count, _ in axes) + spec.shape
    with torch.inference_mode(False):
        pool = pools[strides.pool]
        if not spec.page_nbytes:
            return torch.empty(shape, dtype=dtype, device=pool.device)
        for extent in spec.shape:
            step //= extent
            axes.append((extent, step))
        start = pool.storage_offset() + strides.start
        if start % dtype.itemsize:
            raise LayoutError(
                f"cache {spec.name!r} would start at byte {start} of its buffer, which is no multiple of the "
                f"{dtype.itemsize} bytes of {spec.dtype}; align the memory that is adopted",
                cache=spec.name,
            )
        steps = tuple(step // dtype.itemsize for _, step in axes)
        view = torch.empty(0, dtype=dtype, device=pool.device)
        return view.set_(pool.untyped_storage(), start // dtype.itemsize, shape, steps)


def torch_dtype(spec: CacheTensorSpec) -> torch.dtype:
    """The torch dtype of a spec; :class:`PlanError` when this torch is too old to know it."""
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise PlanError(
            f"cache {spec.name!r}: torch {torch.__version__} has no dtype {spec.dtype}; use a newer torch, "
            "or store it as uint8 and say in format= what the bytes mean",
            cache=spec.name,
        )
    return dtype


def byte_range(allocation: CacheAllocation[Tensor], pool: int, offset: int, nbytes: int) -> Tensor:
    """``uint8[nbytes]`` of one pool, aliasing it."""
    pools = live_pools(allocation)
    if not 0 <= pool < len(pools):
        raise BlockIndexError(f"pool {pool} is out of range; the allocation has {len(pools)} pools", block=pool)
    flat = pools[pool].view(-1)
    if offset < 0 or nbytes < 0 or offset + nbytes > flat.numel():
        raise BlockIndexError(
            f"bytes {offset} to {offset + nbytes} do not lie within the {flat.numel()} bytes of pool {pool}",
            block=offset,
        )
    return flat[offset : offset + nbytes]


def bytes_of(part: Tensor) -> bytes:
    """The bytes of a contiguous CPU byte tensor."""
    return bytes((c_char * part.numel()).from_address(part.data_ptr())) if part.numel() else b""


def neighbours(entries: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of neighbouring ids.

    >>> list(neighbours([7, 2, 3]))
    [(2, 4), (7, 8)]
    """
    start = stop = None
    for entry in sorted(set(entries)):
        if entry == stop:
            stop = entry + 1
            continue
        if start is not None and stop is not None:
            yield start, stop
        start, stop = entry, entry + 1
    if start is not None and stop is not None:
        yield start, stop


def synchronize(device: torch.device) -> None:
    """Block until all work queued on ``device`` is done."""
    if device.type != "cpu":
        module = torch.get_device_module(device)
        if device.index is not None and hasattr(module, "current_stream"):
            module.synchronize(device)
        else:
            module.synchronize()


def ids_on(device: torch.device, *rows: array[int]) -> Tensor:
    """Upload equally long rows of ids as ``int64[rows, n]``; see :func:`upload` for when the host waits."""
    return upload(torch.stack([torch.frombuffer(row, dtype=torch.int64) for row in rows]), device)
