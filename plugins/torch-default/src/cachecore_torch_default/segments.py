"""From the runs of bytes that a copy moves to strided tensors over whole pools.

A model has thousands of runs a block (rows x specs) but few shapes of them: equally spaced runs of
one length fold into one :class:`SegmentGroup`, so that a block costs one view and not one a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from cachecore import CopySegment

__all__ = [
    "GroupDim",
    "SegmentGroup",
    "fold_segments",
    "group_tensors",
    "group_word_nbytes",
    "part_segments",
    "word_tensor",
]


class GroupDim(NamedTuple):
    """One axis of equally spaced runs; strides are bytes."""

    num_steps: int
    src_stride: int
    dst_stride: int


class SegmentGroup(NamedTuple):
    """Equally spaced runs of ``nbytes`` that every block has; all numbers are bytes.

    The runs of block ``b`` start at ``start + b*block_stride + sum(i*stride)`` for every index of ``dims``.
    """

    src_pool: int
    src_start: int
    src_block_stride: int
    dst_pool: int
    dst_start: int
    dst_block_stride: int
    dims: tuple[GroupDim, ...]
    nbytes: int

    @property
    def num_runs(self) -> int:
        """Runs of one block."""
        count = 1
        for dim in self.dims:
            count *= dim.num_steps
        return count

    @property
    def block_nbytes(self) -> int:
        """Bytes that one block moves."""
        return self.num_runs * self.nbytes


def fold_segments(segments: Sequence[CopySegment]) -> tuple[SegmentGroup, ...]:
    """Fold equally spaced segments of one shape into groups; every byte stays in exactly one group."""
    groups = [_as_group(segment) for segment in segments if segment.nbytes and segment.num_pages]
    while True:
        folded = _fold_once(groups)
        if len(folded) == len(groups):
            return tuple(folded)
        groups = folded


def part_segments(segments: Sequence[CopySegment], most_nbytes: int) -> tuple[tuple[CopySegment, ...], ...]:
    """Deal a block's runs out to parts of at most ``most_nbytes`` (a multiple of 16) each; longer runs are cut.

    What takes a temporary as large as what it moves stays bounded so, however large a block is.
    """
    parts: list[list[CopySegment]] = [[]]
    room = most_nbytes
    for segment in segments:
        for piece in _pieces(segment, most_nbytes):
            nbytes = piece.nbytes * piece.num_pages
            if nbytes > room:
                parts.append([])
                room = most_nbytes
            parts[-1].append(piece)
            room -= nbytes
    return tuple(map(tuple, parts))


def _pieces(segment: CopySegment, most_nbytes: int) -> Iterator[CopySegment]:
    if segment.nbytes * segment.num_pages <= most_nbytes:
        yield segment
        return
    for page in range(segment.num_pages):
        for start in range(0, segment.nbytes, most_nbytes):
            yield segment._replace(
                src_start=segment.src_start + page * segment.src_page_stride + start,
                dst_start=segment.dst_start + page * segment.dst_page_stride + start,
                nbytes=min(most_nbytes, segment.nbytes - start),
                num_pages=1,
            )


def group_word_nbytes(group: SegmentGroup, src_offset: int, dst_offset: int, widest: int = 8) -> int:
    """The widest word, in bytes, that every run of ``group`` is made of; pools start at these storage offsets."""
    numbers = [widest, group.nbytes, src_offset, dst_offset]
    numbers += [group.src_start, group.src_block_stride, group.dst_start, group.dst_block_stride]
    for dim in group.dims:
        numbers += [dim.src_stride, dim.dst_stride]
    return gcd(*numbers)


def word_tensor(
    pool: Tensor,
    start: int,
    num_blocks: int,
    block_stride: int,
    dims: Sequence[tuple[int, int]],
    nbytes: int,
    word: torch.dtype,
) -> Tensor:
    """Return ``pool``'s bytes as ``word[num_blocks, *counts, nbytes / itemsize]``, aliasing it.

    ``pool`` is a contiguous byte tensor; ``dims`` holds (count, stride in bytes).
    """
    size = word.itemsize
    shape = (num_blocks, *(count for count, _ in dims), nbytes // size)
    strides = (block_stride // size, *(stride // size for _, stride in dims), 1)
    with torch.inference_mode(False):
        view = torch.empty(0, dtype=word, device=pool.device)
        return view.set_(pool.untyped_storage(), (pool.storage_offset() + start) // size, shape, strides)


def group_tensors(
    group: SegmentGroup,
    src: Tensor,
    dst: Tensor,
    num_blocks: tuple[int, int],
    words: Mapping[int, torch.dtype],
) -> tuple[Tensor, Tensor]:
    """Source and destination of ``group`` as tensors of one shape but for the leading block axis."""
    word = words[group_word_nbytes(group, int(src.storage_offset()), int(dst.storage_offset()), max(words))]
    src_dims = [(dim.num_steps, dim.src_stride) for dim in group.dims]
    dst_dims = [(dim.num_steps, dim.dst_stride) for dim in group.dims]
    return (
        word_tensor(src, group.src_start, num_blocks[0], group.src_block_stride, src_dims, group.nbytes, word),
        word_tensor(dst, group.dst_start, num_blocks[1], group.dst_block_stride, dst_dims, group.nbytes, word),
    )


def _as_group(segment: CopySegment) -> SegmentGroup:
    nbytes = segment.nbytes
    dims: tuple[GroupDim, ...] = ()
    if segment.num_pages > 1:
        if segment.src_page_stride == nbytes == segment.dst_page_stride:
            nbytes *= segment.num_pages
        else:
            dims = (GroupDim(segment.num_pages, segment.src_page_stride, segment.dst_page_stride),)
    return SegmentGroup(
        segment.src_pool,
        segment.src_start,
        segment.src_block_stride,
        segment.dst_pool,
        segment.dst_start,
        segment.dst_block_stride,
        dims,
        nbytes,
    )


def _fold_once(groups: Sequence[SegmentGroup]) -> list[SegmentGroup]:
    """Fold arithmetic progressions of starts among groups that are equal but for their starts."""
    alike: dict[SegmentGroup, list[SegmentGroup]] = {}
    for group in groups:
        alike.setdefault(group._replace(src_start=0, dst_start=0), []).append(group)
    folded: list[SegmentGroup] = []
    for members in alike.values():
        left = {(group.src_start, group.dst_start): group for group in sorted(members, key=_starts)}
        while left:
            start, first = next(iter(left.items()))
            count, step = _longest_progression(start, left)
            for index in range(count):
                del left[start[0] + index * step[0], start[1] + index * step[1]]
            folded.append(_join(first, count, step) if count > 1 else first)
    return folded


_LOOK_AHEAD = 16
"""Specs of one size that may stand side by side before a row repeats; beyond, runs fold less."""


def _starts(group: SegmentGroup) -> tuple[int, int]:
    return group.src_start, group.dst_start


def _longest_progression(
    start: tuple[int, int], left: Mapping[tuple[int, int], SegmentGroup]
) -> tuple[int, tuple[int, int]]:
    """The most equally spaced starts from ``start`` on (sorted first in ``left``), and their distance."""
    best, best_step = 1, (0, 0)
    for other in islice(left, 1, 1 + _LOOK_AHEAD):
        step = (other[0] - start[0], other[1] - start[1])
        if step[0] < 0 or step[1] < 0:  # a torch tensor has no negative stride
            continue
        count = 2
        while (start[0] + count * step[0], start[1] + count * step[1]) in left:
            count += 1
        if count > best:
            best, best_step = count, step
    return best, best_step


def _join(first: SegmentGroup, count: int, step: tuple[int, int]) -> SegmentGroup:
    if step == (first.nbytes, first.nbytes) and not first.dims:
        return first._replace(nbytes=count * first.nbytes)
    return first._replace(dims=(GroupDim(count, *step), *first.dims))
