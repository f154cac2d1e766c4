"""Long runs: addresses, and one ``memmove`` each, which holds no GIL."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import memmove
from functools import partial
from itertools import product

from cachecore_torch_default import SegmentGroup
from torch import Tensor

from cachecore_cpu.threads import Run, Task

__all__ = ["MemmoveGroup"]

_PIECE_NBYTES = 8 << 20
"""Neighbouring dense blocks move together up to this size, small enough to share out evenly."""


class MemmoveGroup:
    """Equally spaced runs of every block, as byte addresses."""

    def __init__(self, group: SegmentGroup, src: Tensor, dst: Tensor) -> None:
        self._group = group
        self._src, self._dst = src, dst  # alive as long as their addresses are used
        self._offsets = [
            (
                sum(index * dim.dst_stride for index, dim in zip(at, group.dims, strict=True)),
                sum(index * dim.src_stride for index, dim in zip(at, group.dims, strict=True)),
            )
            for at in product(*(range(dim.num_steps) for dim in group.dims))
        ]
        dense = not group.dims and group.src_block_stride == group.nbytes == group.dst_block_stride
        self._most_blocks = max(1, _PIECE_NBYTES // group.nbytes) if dense else 1

    def tasks(self, runs: Sequence[Run], num_tasks: int) -> list[Task]:
        """Equal shares of all runs of bytes, also when there are fewer blocks than shares."""
        group, most = self._group, self._most_blocks
        src_at, dst_at = self._src.data_ptr() + group.src_start, self._dst.data_ptr() + group.dst_start
        blocks = [
            (
                dst_at + (dst + first) * group.dst_block_stride,
                src_at + (src + first) * group.src_block_stride,
                min(most, count - first) * group.nbytes,
            )
            for src, dst, count in runs
            for first in range(0, count, most)
        ]
        total = len(blocks) * len(self._offsets)
        return [
            partial(self._move, blocks, total * share // num_tasks, total * (share + 1) // num_tasks)
            for share in range(num_tasks)
        ]

    def _move(self, blocks: Sequence[tuple[int, int, int]], start: int, stop: int) -> None:
        """Move the runs numbered ``start`` to ``stop``, block by block."""
        per_block = len(self._offsets)
        for number in range(start // per_block, -(-stop // per_block)):
            dst, src, nbytes = blocks[number]
            first = max(0, start - number * per_block)
            for dst_offset, src_offset in self._offsets[first : stop - number * per_block]:
                memmove(dst + dst_offset, src + src_offset, nbytes)
