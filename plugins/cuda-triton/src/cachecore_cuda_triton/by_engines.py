"""Copies by the copy engines alone: no staging, and no multiprocessor of the model's.

*Pitched*: a block's rows stand at one distance in the device's pool, and one after another in a host block; that
is what the engines' pitched copies take. *Whole*: a block that is one run on both sides is a piece of one
batched copy. Short rows move faster through staging; the calibration says which.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from cachecore_torch_default import SegmentGroup, fold_segments

from cachecore import BlockPairs, CopySegment
from cachecore_cuda_triton.driver import ROW_OP_WORDS, copy_pieces, copy_rows, row_op

__all__ = ["EngineCopies"]


_WORTH_TWO = 8 << 20
"""Bytes from which a swap is queued in two calls: one more costs some 20 µs of CPU, and the link takes 150 for this."""

_FIRST_PART = 8


class _Rows(NamedTuple):
    """One operation on rows of block 0, as :func:`row_op` makes it, and the distances of two blocks."""

    op: array[int]
    src_stride: int
    dst_stride: int


class _Piece(NamedTuple):
    """One run of block 0 on both sides, and the distances of two blocks."""

    src: int
    dst: int
    src_stride: int
    dst_stride: int
    nbytes: int


class EngineCopies:
    """Every run of a block as operations on rows, or as pieces; a call fills in the blocks' addresses."""

    def __init__(self, segments: Sequence[CopySegment], src_pools: Sequence[int], dst_pools: Sequence[int]) -> None:
        self._rows: list[_Rows] = []
        self._pieces: list[_Piece] = []
        self._nbytes = 0
        for group in fold_segments(segments):
            self._nbytes += group.block_nbytes
            strides = group.src_block_stride, group.dst_block_stride
            at, to = src_pools[group.src_pool] + group.src_start, dst_pools[group.dst_pool] + group.dst_start
            if group.dims:
                self._rows += [_Rows(array("q", op), *strides) for op in _ops(group, at, to)]
            else:
                self._pieces.append(_Piece(at, to, *strides, group.nbytes))

    def queue(self, pairs: BlockPairs, stream: int) -> None:
        """Queue all pairs on ``stream``: some first, so that the link is busy while the rest is queued."""
        src, dst = pairs.src, pairs.dst
        first = len(src) // _FIRST_PART if len(src) * self._nbytes >= _WORTH_TWO else 0
        if first:
            self._queue(src[:first], dst[:first], stream)
            src, dst = src[first:], dst[first:]
        self._queue(src, dst, stream)

    def _queue(self, src_ids: Sequence[int], dst_ids: Sequence[int], stream: int) -> None:
        if self._pieces:
            dst, src, lengths = array("Q"), array("Q"), array("Q")
            for at, to, src_stride, dst_stride, nbytes in self._pieces:
                dst += array("Q", [to + block * dst_stride for block in dst_ids])
                src += array("Q", [at + block * src_stride for block in src_ids])
                lengths += array("Q", [nbytes]) * len(src_ids)
            copy_pieces(dst, src, lengths, stream)
        if self._rows:
            words = array("q")
            for op, src_stride, dst_stride in self._rows:
                some = op * len(src_ids)
                some[1::ROW_OP_WORDS] = array("q", [op[1] + block * src_stride for block in src_ids])
                some[6::ROW_OP_WORDS] = array("q", [op[6] + block * dst_stride for block in dst_ids])
                words.extend(some)
            copy_rows(words, stream)


def _ops(group: SegmentGroup, src: int, dst: int) -> list[list[int]]:
    """The longest axis becomes the rows of an operation, the others operations of their own."""
    *dims, rows = sorted(group.dims, key=lambda dim: dim.num_steps)
    found = []
    for steps in product(*(range(dim.num_steps) for dim in dims)):
        at = src + sum(step * dim.src_stride for step, dim in zip(steps, dims, strict=True))
        to = dst + sum(step * dim.dst_stride for step, dim in zip(steps, dims, strict=True))
        found.append(row_op(at, rows.src_stride, to, rows.dst_stride, group.nbytes, rows.num_steps))
    return found
