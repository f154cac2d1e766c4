"""A block copy and no backend: ``memmove`` between any two torch allocations in host memory. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import memmove
from typing import Any

from cachecore import COMPLETED, BlockCacheCopy, BlockCopyInfo, BlockPairs, Completion, CopyContext, CopySide, hookimpl

PRIORITY = 200
"""Ahead of every other copy in host memory, for the sake of the example."""


class MemmoveCopy(BlockCacheCopy):
    """Every run of bytes of every pair, one ``memmove`` each; done when the call returns."""

    path = "memmove:runs"

    def __init__(self, context: CopyContext) -> None:
        self._context = context

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        for completion in after:
            completion.synchronize()
        self._copy(pairs)
        return COMPLETED

    def on_device(self, ids: Any) -> None:
        self._copy((src, dst) for src, dst in zip(*ids.tolist(), strict=True) if src >= 0 and dst >= 0)

    def _copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        src_at = [pool.data_ptr() for pool in self._context.src.pools]
        dst_at = [pool.data_ptr() for pool in self._context.dst.pools]
        for src, dst in pairs:
            for run in self._context.segments:
                source = src_at[run.src_pool] + run.src_start + src * run.src_block_stride
                target = dst_at[run.dst_pool] + run.dst_start + dst * run.dst_block_stride
                for page in range(run.num_pages):
                    memmove(target + page * run.dst_page_stride, source + page * run.src_page_stride, run.nbytes)


def probe(src: CopySide, dst: CopySide) -> str | None:
    """None where both sides are tensors in host memory."""
    for side in (src, dst):
        if side.device.type != "cpu":
            return f"copies host memory, not {side.device}"
    return None


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """One."""
    return [BlockCopyInfo("host-memmove", PRIORITY, probe, MemmoveCopy)]
