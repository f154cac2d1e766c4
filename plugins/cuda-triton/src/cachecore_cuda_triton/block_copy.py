"""Block copy in one launch, whatever the number of pools, rows and entry axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from cachecore_torch_default import check_device_ids, completion_of_current_stream
from torch import Tensor

from cachecore import BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import compile_ahead, copy_host_pairs, current_stream, launch_copy, on_device
from cachecore_cuda_triton.tiles import runs_of, tile_table

__all__ = ["FusedBlockCopy", "pool_addresses"]


class FusedBlockCopy(BlockCacheCopy):
    """Runs on the caller's stream; the segment table stands on the device since the copy was built."""

    path = "cuda:fused"

    def __init__(self, context: CopyContext) -> None:
        pools = context.dst.pools
        self._device: torch.device = pools[0].device if pools else torch.device("cuda")
        runs = runs_of(context.segments, pool_addresses(context.src.pools), pool_addresses(pools))
        self._table = tile_table(runs, self._device, TILE_NBYTES)
        compile_ahead(self._table, "copy")
        self._held = context.src.pools, pools  # the table holds addresses, so the memory must stay

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Upload the ids without waiting, and copy."""
        for completion in after:
            completion.wait()
        with on_device(self._device):
            copy_host_pairs(self._table, pairs.src, pairs.dst, current_stream(self._device))
        return completion_of_current_stream(self._device)

    def on_device(self, ids: Tensor) -> None:
        """One launch, nothing else: no allocation, no event, no check that would wait."""
        check_device_ids(ids, self._device)
        if not ids.is_contiguous():
            raise ValueError(f"device-resident ids must be contiguous, but have strides {ids.stride()}")
        with on_device(self._device):
            launch_copy(self._table, ids, current_stream(self._device))


def pool_addresses(pools: Sequence[Tensor]) -> list[int]:
    """First byte of every pool."""
    return [pool.data_ptr() for pool in pools]
