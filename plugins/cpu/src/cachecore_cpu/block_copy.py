"""Block copies and swaps within host memory, at memory speed.

One strided ``copy_`` a block, in torch's own threads; in one thread, long runs go through ``memmove``.
Measured, with what was tried and left, in ``benchmarks/results/2026-11-29-cpu.md``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from cachecore_torch_default import check_device_ids, fold_segments, group_tensors
from torch import Tensor

from cachecore import COMPLETED, BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_cpu import memmoves
from cachecore_cpu.strided import WORDS, StridedGroup

__all__ = ["CpuBlockCopy"]


class CpuBlockCopy(BlockCacheCopy):
    """Copies between two host allocations, or within one; done when the call returns."""

    def __init__(self, context: CopyContext) -> None:
        counts = (context.num_src_blocks, context.num_dst_blocks)
        self._in_threads: list[StridedGroup] = []
        self._in_one: list[StridedGroup | memmoves.MemmoveGroup] = []
        for group in fold_segments(context.segments):
            src, dst = context.src.pools[group.src_pool], context.dst.pools[group.dst_pool]
            strided = StridedGroup(*group_tensors(group, src, dst, counts, WORDS))
            long = group.nbytes >= memmoves.MEMMOVE_NBYTES
            self._in_threads.append(strided)
            self._in_one.append(memmoves.MemmoveGroup(group, src, dst) if long else strided)
        self.path = "cpu:strided" if self._in_one == self._in_threads else "cpu:strided+memmove"

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy now, in as many threads as torch may use."""
        for completion in after:
            completion.synchronize()
        runs = list(pairs.runs())
        for group in self._in_one if torch.get_num_threads() == 1 else self._in_threads:
            group.copy(runs)
        return COMPLETED

    def on_device(self, ids: Tensor) -> None:
        """Copy with ids in a tensor; -1 is padding."""
        check_device_ids(ids, torch.device("cpu"))
        listed = [(src, dst) for src, dst in zip(*ids.tolist(), strict=True) if src >= 0 and dst >= 0]
        if listed:
            self(BlockPairs.of(listed))
