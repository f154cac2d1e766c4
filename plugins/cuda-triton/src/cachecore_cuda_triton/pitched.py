"""Copies of equally spaced rows by the copy engines alone: no staging, and no multiprocessor of the model's.

A block's rows stand at one distance in the device's pool, and one after another in a host block; that
is what the engines' pitched copies take. Rows below some length (measured by the calibration) move
faster through staging.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import product

from cachecore_torch_default import SegmentGroup, fold_segments

from cachecore import BlockPairs, CopySegment
from cachecore_cuda_triton.driver import ROW_OP_WORDS, copy_rows, row_op

__all__ = ["PitchedCopies"]


class PitchedCopies:
    """Every run of a block as operations on rows; a call fills in the blocks' addresses."""

    def __init__(self, segments: Sequence[CopySegment], src_pools: Sequence[int], dst_pools: Sequence[int]) -> None:
        groups = fold_segments(segments)
        self.run_nbytes = tuple((group.nbytes, group.block_nbytes) for group in groups)
        self._ops = [
            (array("q", op), group.src_block_stride, group.dst_block_stride)
            for group in groups
            for op in _ops(group, src_pools[group.src_pool], dst_pools[group.dst_pool])
        ]

    def queue(self, pairs: BlockPairs, stream: int) -> None:
        """Queue all rows of all pairs on ``stream``."""
        words = array("q")
        for op, src_stride, dst_stride in self._ops:
            some = op * len(pairs)
            some[1::ROW_OP_WORDS] = array("q", [op[1] + block * src_stride for block in pairs.src])
            some[6::ROW_OP_WORDS] = array("q", [op[6] + block * dst_stride for block in pairs.dst])
            words.extend(some)
        copy_rows(words, stream)


def _ops(group: SegmentGroup, src: int, dst: int) -> list[list[int]]:
    """The longest axis becomes the rows of an operation, the others operations of their own."""
    dims = sorted(group.dims, key=lambda dim: dim.num_steps)
    rows = dims.pop() if dims else None
    found = []
    for steps in product(*(range(dim.num_steps) for dim in dims)):
        at = src + group.src_start + sum(step * dim.src_stride for step, dim in zip(steps, dims, strict=True))
        to = dst + group.dst_start + sum(step * dim.dst_stride for step, dim in zip(steps, dims, strict=True))
        pitches = (group.nbytes, group.nbytes) if rows is None else (rows.src_stride, rows.dst_stride)
        height = 1 if rows is None else rows.num_steps
        found.append(row_op(at, pitches[0], to, pitches[1], group.nbytes, height))
    return found
