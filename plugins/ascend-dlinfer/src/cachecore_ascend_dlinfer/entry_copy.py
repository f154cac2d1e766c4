"""Block copies on one device: whole entries of dense pools, by torch indexing in bounded chunks."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import torch
from cachecore_torch_default import check_device_ids, completion_of_current_stream, upload
from torch import Tensor

from cachecore import BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_ascend_dlinfer.backend import DlinferBackend

__all__ = ["WORKSPACE_NBYTES", "EntryCopy"]

WORKSPACE_NBYTES = 64 << 20
"""Most temporary bytes at once."""


class EntryCopy(BlockCacheCopy):
    """``index_select`` into a dense temporary, then ``index_copy_``, on the caller's stream.

    Every operand is contiguous. Never the batch copy of addresses: aclrtMemcpyBatchAsync has no
    direction from device to device, so it would loop.
    """

    path = "dlinfer:index"
    workspace_nbytes = WORKSPACE_NBYTES

    def __init__(self, context: CopyContext) -> None:
        self._backend: DlinferBackend = context.dst_backend
        self._parts: list[tuple[Tensor, Tensor, int]] = []
        self.device = torch.device("cpu")  # until a pool says which; without pools nothing is copied
        for src, dst in zip(context.src.pools, context.dst.pools, strict=True):
            self.device = dst.device
            if src.numel():
                self._add(_blocks(src, context.num_src_blocks), _blocks(dst, context.num_dst_blocks))

    def _add(self, src: Tensor, dst: Tensor) -> None:
        """Cut the rows, so that one block of a part fits into the workspace, and note how many do."""
        offsets = src.storage_offset(), dst.storage_offset()
        word = self._backend.words[gcd(max(self._backend.words), src.shape[2], *offsets)]
        src, dst = src.view(word), dst.view(word)
        row_nbytes = src.shape[2] * word.itemsize
        rows = max(1, min(src.shape[0], WORKSPACE_NBYTES // row_nbytes))
        for first in range(0, src.shape[0], rows):
            part = src[first : first + rows], dst[first : first + rows]
            self._parts.append((*part, max(1, WORKSPACE_NBYTES // (row_nbytes * part[0].shape[0]))))

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy on the caller's current stream."""
        for completion in after:
            completion.wait()
        rows = [torch.frombuffer(row, dtype=torch.int64) for row in (pairs.src, pairs.dst)]
        src, dst = upload(torch.stack(rows), self.device)
        self._copy(src, dst)
        return completion_of_current_stream(self.device)

    def on_device(self, ids: Tensor) -> None:
        """Copy with device-resident ids; padding repeats the first real pair, or copies block 0 onto itself."""
        check_device_ids(ids, self.device)
        src, dst = ids[0], ids[1]
        real = (src >= 0) & (dst >= 0)
        first = ids.index_select(1, real.to(torch.uint8).argmax().view(1)).clamp(min=0)
        first = torch.where(real.any(), first, torch.zeros_like(first))
        self._copy(torch.where(real, src, first[0]), torch.where(real, dst, first[1]))

    def _copy(self, src_ids: Tensor, dst_ids: Tensor) -> None:
        num_pairs = src_ids.numel()
        for src, dst, step in self._parts:
            rows, _, width = src.shape
            with torch.inference_mode(False):
                taken = torch.empty(rows * min(step, num_pairs) * width, dtype=src.dtype, device=self.device)
            for start in range(0, num_pairs, step):
                count = min(step, num_pairs - start)
                some = taken[: rows * count * width].view(rows, count, width)
                torch.index_select(src, 1, src_ids[start : start + count], out=some)
                dst.index_copy_(1, dst_ids[start : start + count], some)


def _blocks(pool: Tensor, num_blocks: int) -> Tensor:
    """``uint8[rows, blocks, pages * inner]``: the pages of a block are neighbours."""
    outer, entries, inner = pool.shape
    return pool.view(outer, num_blocks, entries // num_blocks * inner)
