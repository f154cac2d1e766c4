"""Copies of single rows of a ring state, between its slots and the memory that a draft keeps them in."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from cachecore.backend import CacheAllocation
from cachecore.blocks import BlockPairs
from cachecore.copying import CopyContext, CopySegment
from cachecore.engine_group import EngineGroup
from cachecore.transfer import ResolvedCopy

__all__ = ["RingCopies"]


class RingCopies:
    """Copies of single ring rows of one state, to the scratch memory and back.

    A slot is seen as pieces of ``piece`` bytes, the largest that both a ring row and the distance
    between slots are made of, so that a row is one piece wherever the layout allows it.
    """

    def __init__(
        self, group: EngineGroup[Any], index: int, shift: int, scratch: CacheAllocation[Any], pool: int
    ) -> None:
        device, backend, spec = group.device, group.backend, group.plan.specs[index]
        self._num_rows = spec.shape[0]
        self._shift = shift
        self._row_nbytes = spec.page_nbytes // self._num_rows
        self._slot_nbytes = device.layout.row_strides(index, 0, device.num_entries).entry
        self._piece = gcd(self._row_nbytes, self._slot_nbytes)
        num_src = max(0, (device.num_entries - 1) * self._slot_nbytes + spec.page_nbytes) // self._piece
        num_dst = scratch.num_entries * self._row_nbytes // self._piece
        keep, put_back = [], []
        for row in range(spec.num_rows):
            at = device.layout.row_strides(index, row, device.num_entries)
            state = (at.pool, at.start, self._piece, self._piece)
            kept = (pool, row * scratch.num_entries * self._row_nbytes, self._piece, self._piece)
            keep.append(CopySegment(*state, *kept, self._piece, 1))
            put_back.append(CopySegment(*kept, *state, self._piece, 1))
        self._keep: ResolvedCopy = group.build_copy(
            CopyContext(backend, device, backend, scratch, num_src, num_dst, tuple(keep))
        )
        self._put_back: ResolvedCopy = group.build_copy(
            CopyContext(backend, scratch, backend, device, num_dst, num_src, tuple(put_back))
        )

    def move(self, rows: Sequence[tuple[int, int, int]], *, restore: bool) -> None:
        """Move ``(slot, position, scratch row)`` out of the state, or back into it."""
        pieces = self._row_nbytes // self._piece
        state: list[int] = []
        kept: list[int] = []
        for slot, position, scratch_row in rows:
            ring_row = (position + self._shift) % self._num_rows
            start = (slot * self._slot_nbytes + ring_row * self._row_nbytes) // self._piece
            state.extend(range(start, start + pieces))
            kept.extend(range(scratch_row * pieces, (scratch_row + 1) * pieces))
        if restore:
            self._put_back.copy(BlockPairs(kept, state))
        else:
            self._keep.copy(BlockPairs(state, kept))
