"""Block copies and swaps within host memory, at memory speed.

Two ways, by the length of a block's runs. Long ones go through ``memmove``, whose string moves skip
reading the destination. Shorter ones go as strided tensors, a block at a time: a loop in C over all
runs. With several threads, pieces stay below the size at which torch would start threads of its own,
and ``_foreach_copy_`` holds no GIL while it works through a thread's share.

Measured in ``benchmarks/results/2026-11-29-cpu.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from cachecore_torch_default import check_device_ids, fold_segments, group_tensors
from torch import Tensor

from cachecore import COMPLETED, BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_cpu.memmoves import MemmoveGroup
from cachecore_cpu.strided import WORDS, StridedGroup
from cachecore_cpu.threads import Task, num_copy_threads, run_in_threads

__all__ = ["MEMMOVE_NBYTES", "CpuBlockCopy"]

MEMMOVE_NBYTES = 128 << 10
"""From this run length on ``memmove`` wins: 1.04 of the limit at 128 KiB, against 0.97 for a strided copy."""


class CpuBlockCopy(BlockCacheCopy):
    """Copies between two host allocations, or within one; done when the call returns."""

    def __init__(self, context: CopyContext) -> None:
        self._block_nbytes = context.block_nbytes
        self._memmoves: list[MemmoveGroup] = []
        self._strided: list[StridedGroup] = []
        for group in fold_segments(context.segments):
            src, dst = context.src.pools[group.src_pool], context.dst.pools[group.dst_pool]
            if group.nbytes >= MEMMOVE_NBYTES:
                self._memmoves.append(MemmoveGroup(group, src, dst))
            else:
                counts = (context.num_src_blocks, context.num_dst_blocks)
                self._strided.append(StridedGroup(*group_tensors(group, src, dst, counts, WORDS)))
        ways = [name for name, groups in (("memmove", self._memmoves), ("strided", self._strided)) if groups]
        self.path = "cpu:" + ("+".join(ways) or "nothing")

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy now, in as many threads as torch may use."""
        for completion in after:
            completion.synchronize()
        runs = list(pairs.runs())
        threads = num_copy_threads(self._block_nbytes * len(pairs))
        shares: list[list[Task]] = [[] for _ in range(threads)]
        ways: list[MemmoveGroup | StridedGroup] = [*self._memmoves, *self._strided]
        for way in ways:
            for share, task in zip(shares, way.tasks(runs, threads), strict=True):
                share.append(task)
        run_in_threads([partial(_run_all, share) for share in shares])
        return COMPLETED

    def on_device(self, ids: Tensor) -> None:
        """Copy with ids in a tensor; -1 is padding."""
        check_device_ids(ids, torch.device("cpu"))
        listed = [(src, dst) for src, dst in zip(*ids.tolist(), strict=True) if src >= 0 and dst >= 0]
        if listed:
            self(BlockPairs.of(listed))


def _run_all(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()
