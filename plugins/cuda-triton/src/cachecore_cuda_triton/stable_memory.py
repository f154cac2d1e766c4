"""Allocations whose addresses outlast a sleep: one range of virtual memory for all pools of a group."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cachecore import AllocationError, CacheAllocation, CacheLayout, DeviceSpec
from cachecore.layout import NATIVE_ALIGNMENT
from cachecore_cuda_triton.virtual_memory import VirtualRange

__all__ = ["StableAllocation", "allocate_stable", "free_stable", "release_stable", "restore_stable"]


@dataclass(slots=True)
class StableAllocation(CacheAllocation[Tensor]):
    """``range`` is None where the layout has no bytes; ``kept`` are buffers and pools, also while released."""

    range: VirtualRange | None = field(default=None)
    kept: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = field(default=((), ()))


class _Owner:
    """What torch holds on to as long as a tensor over the range lives; then the range is given back."""

    def __init__(self, reserved: VirtualRange, device: torch.device) -> None:
        self.__cuda_array_interface__ = {
            "shape": (reserved.nbytes,),
            "typestr": "|u1",
            "data": (reserved.address, False),
            "strides": None,
            "version": 3,
        }
        end = weakref.finalize(self, _give_back, reserved, device)
        end.atexit = False  # the process gives everything back, and the driver may be gone already


def allocate_stable(
    layout: CacheLayout, num_entries: int, device: DeviceSpec, target: torch.device
) -> StableAllocation:
    """Zeroed memory in one range; buffers stand one after another in it, and what is left of its last page is excess.

    Raises
    ------
    AllocationError
        When the device has no room, with the bytes needed and free; nothing is kept.
    """
    sizes = [layout.buffer_nbytes(index, num_entries) for index, _ in enumerate(layout.pools)]
    starts, end = [], 0
    for nbytes in sizes:
        starts.append(end)
        end += -(-nbytes // NATIVE_ALIGNMENT) * NATIVE_ALIGNMENT
    reserved = None
    with torch.inference_mode(False):
        if end:
            _settle(target)  # torch makes the device's context on its first use
            reserved = VirtualRange(end, 0 if target.index is None else target.index)
            try:
                _map(reserved, layout, num_entries, target)
                whole = tensor_at(_Owner(reserved, target), target)
                _zero([whole], target)
            except BaseException:
                reserved.close()
                raise
        else:
            whole = torch.empty(0, dtype=torch.uint8, device=target)
        buffers = tuple(whole[start : start + nbytes] for start, nbytes in zip(starts, sizes, strict=True))
        pools = []
        for spec, buffer in zip(layout.pools, buffers, strict=True):
            start = -buffer.data_ptr() % spec.base_alignment if buffer.numel() else 0
            pool = buffer[start : start + spec.entry_nbytes * num_entries]
            pools.append(pool.view(spec.outer, num_entries, spec.inner))
    found = StableAllocation(layout, num_entries, device, device.type, buffers, tuple(pools))
    found.excess_nbytes = 0 if reserved is None else reserved.nbytes - sum(sizes)
    found.range = reserved
    found.kept = found.buffers, found.pools
    return found


def release_stable(allocation: StableAllocation) -> None:
    """Take the memory away once all work on the device is done; every tensor keeps its address."""
    if allocation.freed:
        return
    allocation.freed = True
    allocation.buffers = allocation.pools = ()
    if allocation.range is not None:
        _settle(allocation.kept[1][0].device)
        allocation.range.unmap()


def restore_stable(allocation: StableAllocation, target: torch.device) -> StableAllocation:
    """Zeroed memory at the same addresses; without room for it nothing changes."""
    if allocation.range is not None:
        _map(allocation.range, allocation.layout, allocation.num_entries, target)
        try:
            _zero(allocation.kept[0], target)
        except BaseException:
            allocation.range.unmap()
            raise
    allocation.buffers, allocation.pools = allocation.kept
    allocation.freed = False
    return allocation


def free_stable(allocation: StableAllocation) -> None:
    """Forget the tensors once all work on the device is done; the range goes with the last of them. Twice is once."""
    if not allocation.freed and allocation.pools:
        _settle(allocation.pools[0].device)
    allocation.freed = True
    allocation.buffers = allocation.pools = ()
    allocation.kept = (), ()
    allocation.range = None


def tensor_at(owner: Any, device: torch.device) -> Tensor:
    """``uint8`` bytes where ``owner.__cuda_array_interface__`` says, without a copy; the tensor keeps ``owner``."""
    found = torch.as_tensor(owner, device=device)
    wanted = owner.__cuda_array_interface__["data"][0]
    if found.data_ptr() != wanted:
        raise AllocationError(f"torch copied the memory at {wanted:#x} to {found.data_ptr():#x} instead of using it")
    return found


def _map(reserved: VirtualRange, layout: CacheLayout, num_entries: int, device: torch.device) -> None:
    try:
        with torch.cuda.device(device):
            try:
                reserved.map()
            except AllocationError:
                torch.cuda.empty_cache()  # what torch keeps for later is as good as free
                reserved.map()
    except AllocationError as error:
        free, _ = torch.cuda.mem_get_info(device)
        raise AllocationError(
            f"layout {layout.kind!r} needs {reserved.nbytes} bytes for {num_entries} entries on {device}, in pages of "
            f"{reserved.page_nbytes}, where {free} bytes are free; nothing is kept. Use fewer blocks",
            nbytes=reserved.nbytes,
            needed_nbytes=reserved.nbytes,
            free_nbytes=free,
            device=str(device),
        ) from error


def _zero(buffers: Sequence[Tensor], device: torch.device) -> None:
    """What the driver maps holds what it held; done on return, since a captured graph may run on any stream."""
    with torch.inference_mode(False):
        for buffer in buffers:
            buffer.zero_()
    _settle(device)


def _give_back(reserved: VirtualRange, device: torch.device) -> None:
    if reserved.is_mapped:
        _settle(device)  # unmapping does not wait for kernels
    reserved.close()


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
