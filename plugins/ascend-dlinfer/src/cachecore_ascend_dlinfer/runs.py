"""The runs of bytes that a copy of blocks moves, and copies on one device by nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cachecore_torch_default import completion_of_current_stream
from torch import Tensor

from cachecore import COMPLETED, BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_ascend_dlinfer.batch_copy import Run, loop_copy

__all__ = ["BlockRuns", "RunCopy", "flat_pools"]


class BlockRuns:
    """What every block of a copy has, in as few runs as neighbouring pages and blocks allow."""

    def __init__(self, context: CopyContext) -> None:
        self._pages = list(_pages(context))

    def of(self, pairs: BlockPairs) -> list[Run]:
        """The runs of ``pairs``."""
        return list(self._runs(list(_neighbours(sorted(pairs)))))

    def _runs(self, neighbours: Sequence[tuple[int, int, int]]) -> Iterator[Run]:
        for src_pool, src_start, src_stride, dst_pool, dst_start, dst_stride, nbytes in self._pages:
            dense = src_stride == dst_stride == nbytes
            for src, dst, count in neighbours:
                for at in range(1 if dense else count):
                    src_at, dst_at = src_start + (src + at) * src_stride, dst_start + (dst + at) * dst_stride
                    yield Run(src_pool, src_at, dst_pool, dst_at, nbytes * count if dense else nbytes)


class RunCopy(BlockCacheCopy):
    """Between two layouts on one device, by a memory copy a run: index operators refuse tensors with gaps."""

    path = "dlinfer:runs"

    def __init__(self, context: CopyContext) -> None:
        self._runs = BlockRuns(context)
        self._device = context.dst.pools[0].device if context.dst.pools else None
        self._copy = loop_copy(flat_pools(context.src.pools), flat_pools(context.dst.pools))

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy on the caller's current stream."""
        for completion in after:
            completion.wait()
        self._copy(self._runs.of(pairs))
        return COMPLETED if self._device is None else completion_of_current_stream(self._device)


def flat_pools(pools: Sequence[Tensor]) -> list[Tensor]:
    """Each pool as ``uint8[nbytes]``."""
    return [pool.view(-1) for pool in pools]


def _pages(context: CopyContext) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """The runs of a block; the pages of a segment are one where they are neighbours on both sides."""
    for segment in context.segments:
        if not segment.nbytes:
            continue
        dense = segment.src_page_stride == segment.dst_page_stride == segment.nbytes
        for page in range(1 if dense else segment.num_pages):
            yield (
                segment.src_pool,
                segment.src_start + page * segment.src_page_stride,
                segment.src_block_stride,
                segment.dst_pool,
                segment.dst_start + page * segment.dst_page_stride,
                segment.dst_block_stride,
                segment.nbytes * segment.num_pages if dense else segment.nbytes,
            )


def _neighbours(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield ``(src, dst, count)`` of pairs that are neighbours on both sides."""
    start = 0
    for at in range(1, len(pairs) + 1):
        if at == len(pairs) or pairs[at] != (pairs[at - 1][0] + 1, pairs[at - 1][1] + 1):
            yield *pairs[start], at - start
            start = at
