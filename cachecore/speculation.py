"""Speculative decoding over window states: keep the ring rows that draft tokens overwrite, put back the rejected.

A window state is a ring: token ``p`` of a sequence is written to row ``p % num_rows`` of its slot, over
the token ``num_rows`` before it. When a draft token is rejected, that older token is needed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, TypeVar

from cachecore.backend import CacheAllocation, CopyContext, CopySegment
from cachecore.blocks import BlockPairs
from cachecore.engine_group import EngineGroup
from cachecore.errors import BlockIndexError, EngineStateError, PlanError
from cachecore.layout_kinds import contiguous_layout
from cachecore.meaning import positive, whole
from cachecore.schema import CacheTensorSpec
from cachecore.state import StateCacheEngine
from cachecore.transfer import ResolvedCopy

__all__ = ["Ring", "SpeculativeTransaction"]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Ring:
    """A state whose first payload axis is a ring of rows; token ``p`` goes to ``(p + shift) % num_rows``.

    ``max_tokens`` is the longest query it takes, all rows by default. A compressor that reads the
    older half of its ring while writing the newer takes half of them.
    """

    name: str
    shift: int = 0
    max_tokens: int | None = None


class SpeculativeTransaction:
    """One draft at a time: :meth:`begin` before the model verifies, :meth:`finish` with what was accepted.

    Takes memory for ``max_sequences * max_tokens`` rows of every ring when made.

    Raises
    ------
    PlanError
        For a state that is unknown or no ring, or a query longer than a ring takes.
    """

    def __init__(
        self,
        engine: StateCacheEngine[Any],
        rings: Sequence[Ring],
        *,
        max_sequences: int,
        max_tokens: int,
        group: str | None = None,
    ) -> None:
        self._group: EngineGroup[Any] = engine.group(group)
        self._engine = engine
        self._max_tokens = positive(max_tokens, "max_tokens")
        num_rows = positive(max_sequences, "max_sequences") * self._max_tokens
        found = [_find_ring(self._group, ring, self._max_tokens) for ring in rings]
        if not found:
            raise PlanError("no rings given; expected at least one window state")
        row_specs = [_row_spec(spec) for _, specs in found for _, spec in specs]
        device = self._group.device
        self._scratch: CacheAllocation[Any] = engine.backend.allocate(
            contiguous_layout(row_specs), num_rows, device.device
        )
        self._num_rows = num_rows
        self._saved: tuple[tuple[int, int, int], ...] | None = None
        self._rings: list[_RingCopies] = []
        pool = 0
        try:
            for ring, specs in found:
                for index, spec in specs:
                    self._rings.append(_RingCopies(self._group, index, spec, ring, self._scratch, pool))
                    pool += 1
        except BaseException:
            self.close()
            raise

    def begin(self, slots: Sequence[int], positions: Sequence[int], num_tokens: int) -> None:
        """Keep the rows that tokens ``positions[i] .. positions[i] + num_tokens`` of ``slots[i]`` will overwrite."""
        if self._saved is not None:
            raise EngineStateError("a draft is under way; finish() it before the next begin()")
        if not 0 < whole(num_tokens, "num_tokens") <= self._max_tokens:
            raise PlanError(f"a draft of {num_tokens} tokens; expected 1 to max_tokens={self._max_tokens}")
        if len(slots) != len(positions) or len(slots) * num_tokens > self._num_rows:
            raise PlanError(
                f"{len(slots)} slots, {len(positions)} positions and {num_tokens} tokens each; expected one position "
                f"a slot and at most {self._num_rows} rows in all"
            )
        saved = []
        for slot, position in zip(slots, positions, strict=True):
            if not 0 <= whole(slot, "a slot") < self._group.num_blocks:
                raise BlockIndexError(f"slot {slot} is out of range; there are {self._group.num_blocks}", slot=slot)
            if whole(position, "a position") < 0:
                raise PlanError(f"position {position} of slot {slot} is negative")
            saved.append((slot, position, num_tokens))
        if len(set(slots)) != len(slots):
            raise PlanError(f"slots {list(slots)} repeat; a sequence has one slot and one draft")
        self._move(saved, [0] * len(saved), restore=False)
        self._saved = tuple(saved)

    def finish(self, accepted: Sequence[int]) -> None:
        """Put back the rows of the tokens after the first ``accepted[i]`` of each sequence."""
        if self._saved is None:
            raise EngineStateError("no draft is under way; begin() one first")
        if len(accepted) != len(self._saved):
            raise PlanError(f"{len(accepted)} accepted counts for {len(self._saved)} sequences")
        for count, (slot, _, num_tokens) in zip(accepted, self._saved, strict=True):
            if not 0 <= whole(count, "an accepted count") <= num_tokens:
                raise PlanError(f"slot {slot}: {count} draft tokens accepted; expected 0 to {num_tokens}")
        self._move(self._saved, accepted, restore=True)
        self._saved = None

    def close(self) -> None:
        """Give the scratch memory back."""
        self._saved = None
        self._engine.backend.free(self._scratch)

    def _move(self, saved: Sequence[tuple[int, int, int]], first: Sequence[int], *, restore: bool) -> None:
        rows = [
            (slot, position + token, number * num_tokens + token)
            for number, (slot, position, num_tokens) in enumerate(saved)
            for token in range(first[number], num_tokens)
        ]
        if rows:
            for ring in self._rings:
                ring.move(rows, restore=restore)


class _RingCopies:
    """Copies of single ring rows of one state, to the scratch memory and back.

    A slot is seen as pieces of ``piece`` bytes, the largest that both a ring row and the distance
    between slots are made of, so that a row is one piece wherever the layout allows it.
    """

    def __init__(
        self,
        group: EngineGroup[Any],
        index: int,
        spec: CacheTensorSpec,
        ring: Ring,
        scratch: CacheAllocation[Any],
        pool: int,
    ) -> None:
        device = group.device
        self._num_rows = spec.shape[0]
        self._shift = ring.shift
        self._row_nbytes = spec.page_nbytes // self._num_rows
        first = device.layout.row_strides(index, 0, device.num_entries)
        self._slot_nbytes = first.entry
        self._piece = gcd(self._row_nbytes, self._slot_nbytes)
        num_src = ((device.num_entries - 1) * self._slot_nbytes + spec.page_nbytes) // self._piece
        num_dst = scratch.num_entries * self._row_nbytes // self._piece
        keep, put_back = [], []
        for row in range(spec.num_rows):
            at = device.layout.row_strides(index, row, device.num_entries)
            state = (at.pool, at.start, self._piece, self._piece)
            kept = (pool, row * scratch.num_entries * self._row_nbytes, self._piece, self._piece)
            keep.append(CopySegment(*state, *kept, self._piece, 1))
            put_back.append(CopySegment(*kept, *state, self._piece, 1))
        backend = group.backend
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


def _find_ring(
    group: EngineGroup[Any], ring: Ring, max_tokens: int
) -> tuple[Ring, tuple[tuple[int, CacheTensorSpec], ...]]:
    specs = tuple((index, spec) for index, spec in enumerate(group.plan.specs) if spec.name == ring.name)
    if not specs:
        names = ", ".join(dict.fromkeys(spec.name for spec in group.plan.specs))
        raise PlanError(f"state {ring.name!r} does not exist in group {group.plan.name!r}; the states are {names}")
    for _, spec in specs:
        if not spec.axes or spec.axes[0] != "token":
            raise PlanError(
                f"state {ring.name!r} has axes {spec.axes}; the first axis of a ring is 'token', its rows",
                cache=ring.name,
            )
        most = min(spec.shape[0], ring.max_tokens or spec.shape[0])
        if max_tokens > most:
            raise PlanError(
                f"a draft of {max_tokens} tokens is too long for ring {ring.name!r}, which takes {most}; "
                "draft fewer tokens",
                cache=ring.name,
            )
    return ring, specs


def _row_spec(spec: CacheTensorSpec) -> CacheTensorSpec:
    """One ring row as a payload of its own."""
    return CacheTensorSpec(
        name=f"{spec.name}:row",
        shape=spec.shape[1:],
        dtype=spec.dtype,
        alignment=spec.alignment,
        row_ids=spec.row_ids,
    )
