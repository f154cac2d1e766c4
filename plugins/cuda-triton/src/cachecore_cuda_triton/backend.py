"""NVIDIA GPUs: torch's memory on the device, exact page-locked memory on the host, one launch a copy."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import torch
from cachecore_torch_default import TorchBackend, completion_of_current_stream, torch_device
from torch import Tensor

from cachecore import COMPLETED, BlockIndexError, CacheAllocation, CacheLayout, Completion, DeviceSpec
from cachecore_cuda_triton.decode_store import store_decode_tokens
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import current_stream, launch_zero, on_device, upload_ids
from cachecore_cuda_triton.paged_attention import paged_decode_attention
from cachecore_cuda_triton.pinned import pinned_pages
from cachecore_cuda_triton.stable_memory import (
    StableAllocation,
    allocate_stable,
    free_stable,
    release_stable,
    restore_stable,
)
from cachecore_cuda_triton.staging import StagingRing, rings_of
from cachecore_cuda_triton.tiles import Run, TileTable, tile_table
from cachecore_cuda_triton.virtual_memory import why_no_virtual_memory

__all__ = ["CudaTritonBackend"]


class CudaTritonBackend(TorchBackend):
    """Overrides of :class:`TorchBackend`: the host tier's memory, stable addresses, and zeroing in one launch."""

    name = "cuda-triton"
    # Optional: what cachecore-transformers decodes with where a backend has it.
    paged_decode_attention = staticmethod(paged_decode_attention)
    store_decode_tokens = staticmethod(store_decode_tokens)

    def __init__(self) -> None:
        super().__init__()
        self._tables: dict[int, TileTable] = {}

    def take(self, nbytes: int, device: torch.device, *, pinned: bool) -> Tensor:
        """Page-locked memory is exact: not a page more than the pool."""
        if pinned and nbytes:
            return pinned_pages(nbytes, device=torch.device("cuda", torch.cuda.current_device()))
        return super().take(nbytes, device, pinned=pinned)

    def free(self, allocation: CacheAllocation[Tensor]) -> None:
        """Give memory back, what was staged on its way too, and forget the table that zeroes it."""
        self._tables.pop(id(allocation), None)
        _rest(allocation, forget=True)
        if isinstance(allocation, StableAllocation):
            free_stable(allocation)
        else:
            super().free(allocation)

    def allocate_stable(self, layout: CacheLayout, num_entries: int, device: DeviceSpec) -> CacheAllocation[Tensor]:
        """Virtual memory: the driver maps other memory at the same addresses after a sleep."""
        if why_no_virtual_memory() is not None:
            return super().allocate_stable(layout, num_entries, device)  # raises, with the reason
        return allocate_stable(layout, num_entries, device, torch_device(device))

    def release(self, allocation: CacheAllocation[Tensor]) -> None:
        """Give memory back to the device, staging slots too; of stable ones addresses and zeroing table stay."""
        _rest(allocation, forget=not isinstance(allocation, StableAllocation))  # others get new copies
        if isinstance(allocation, StableAllocation):
            release_stable(allocation)
            torch.cuda.empty_cache()  # the slots
        else:
            super().release(allocation)

    def restore(self, allocation: CacheAllocation[Tensor]) -> CacheAllocation[Tensor]:
        """Take memory again, at the same addresses where they are stable; staging slots too."""
        if isinstance(allocation, StableAllocation):
            try:
                for ring in _rings(allocation):
                    ring.wake(id(allocation))
                return restore_stable(allocation, torch_device(allocation.device))
            except BaseException:
                _rest(allocation, forget=False)
                raise
        return super().restore(allocation)

    def capabilities(self) -> Mapping[str, str | None]:
        """Everything that blocks need, and stable addresses where the driver has virtual memory management."""
        return {
            "pinned_host": None,
            "device_ids": None,
            "graph_capture": None,
            "async_copy": None,
            "byte_addressable": None,
            "stable_addresses": why_no_virtual_memory(),
        }

    def zero(self, allocation: CacheAllocation[Tensor], entries: Sequence[int]) -> Completion:
        """Zero whole entries of every pool in one launch."""
        if not allocation.pools or allocation.pools[0].device.type != "cuda":
            return super().zero(allocation, entries)
        for entry in entries:
            if not 0 <= entry < allocation.num_entries:
                raise BlockIndexError(
                    f"entry {entry} is out of range; the allocation has {allocation.num_entries}",
                    block=entry,
                    limit=allocation.num_entries,
                )
        if not len(entries):
            return COMPLETED
        device = allocation.pools[0].device
        with on_device(device):
            launch_zero(self._table(allocation), upload_ids(device, array("q", entries))[0], current_stream(device))
        return completion_of_current_stream(device)

    def _table(self, allocation: CacheAllocation[Tensor]) -> TileTable:
        key = id(allocation)  # dropped in free(), before the id can be another's
        table = self._tables.get(key)
        if table is None:
            runs = [
                Run(address, address, pool.inner, pool.inner, pool.inner)
                for pool, tensor in zip(allocation.layout.pools, allocation.pools, strict=True)
                for outer in range(pool.outer)
                if pool.inner
                for address in [tensor.data_ptr() + outer * allocation.num_entries * pool.inner]
            ]
            table = self._tables[key] = tile_table(runs, allocation.pools[0].device, TILE_NBYTES)
        return table


def _rings(allocation: CacheAllocation[Tensor]) -> list[StagingRing]:
    pools = allocation.kept[1] if isinstance(allocation, StableAllocation) else allocation.pools
    return rings_of(pools[0].device) if pools and pools[0].device.type == "cuda" else []


def _rest(allocation: CacheAllocation[Tensor], *, forget: bool) -> None:
    for ring in _rings(allocation):
        ring.rest(id(allocation), forget=forget)
