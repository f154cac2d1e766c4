"""Speculative decoding over window states: keep the ring rows that draft tokens overwrite, put back the rejected.

A window state is a ring: token ``p`` of a sequence is written to row ``p % num_rows`` of its slot, over
the token ``num_rows`` before it. When a draft token is rejected, that older token is needed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self

from cachecore.answers import allocation_of
from cachecore.backend import CacheAllocation
from cachecore.engine_group import EngineGroup
from cachecore.errors import BlockIndexError, EngineStateError, PlanError
from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.layout_kinds import contiguous_layout
from cachecore.meaning import not_negative, positive, several, whole
from cachecore.ring_copies import RingCopies
from cachecore.state import StateCacheEngine

__all__ = ["Ring", "SpeculativeTransaction", "scratch_nbytes"]


@dataclass(frozen=True, slots=True)
class Ring:
    """A state whose first payload axis is a ring of rows; token ``p`` goes to ``(p + shift) % num_rows``.

    ``max_tokens`` is the longest query it takes, all rows by default. A compressor that reads the
    older half of its ring while writing the newer takes half of them.
    """

    name: str
    shift: int = 0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a ring's name must be that of a state, not {self.name!r}")
        object.__setattr__(self, "shift", whole(self.shift, f"ring {self.name!r}: shift"))
        if self.max_tokens is not None:
            object.__setattr__(self, "max_tokens", positive(self.max_tokens, f"ring {self.name!r}: max_tokens"))


def scratch_nbytes(plan: GroupPlan, rings: Sequence[Ring], *, max_sequences: int, max_tokens: int) -> int:
    """Bytes that a :class:`SpeculativeTransaction` takes beside the slots: reserve them when sizing.

    Raises what the transaction would.
    """
    layout, num_rows, _ = _scratch(plan, rings, max_sequences, max_tokens)
    return layout.reserved_nbytes(num_rows)


class SpeculativeTransaction:
    """One draft at a time: :meth:`begin` before the model verifies, :meth:`finish` with what was accepted.

    Takes memory for ``max_sequences * max_tokens`` rows of every ring when made (:func:`scratch_nbytes`);
    close it before its engine, and before that sleeps: its copies hold on to the memory they were made over.

    Raises
    ------
    PlanError
        For a state that is unknown or no ring, or a query longer than a ring takes.
    AllocationError
        When there is no memory for the rows.
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
        if not isinstance(engine, StateCacheEngine):
            raise TypeError(f"engine must be a StateCacheEngine, as a CacheEngine's .states is, not {engine!r}")
        self._group: EngineGroup[Any] = engine.group(group)
        self._engine = engine
        self._generation = engine.generation
        self._closed = False
        layout, num_rows, found = _scratch(self._group.plan, rings, max_sequences, max_tokens)
        self._max_tokens = whole(max_tokens, "max_tokens")
        device = self._group.device.device
        self._scratch: CacheAllocation[Any] = allocation_of(engine.backend, layout, num_rows, device)
        self._num_rows = num_rows
        self._draft: _Draft | None = None
        self._rings: list[RingCopies] = []
        try:
            for pool, (ring, index) in enumerate(found):
                self._rings.append(RingCopies(self._group, index, ring.shift, self._scratch, pool))
        except BaseException:
            self.close()
            raise

    def begin(self, slots: Sequence[int], positions: Sequence[int], num_tokens: int) -> None:
        """Keep the rows that tokens ``positions[i] .. positions[i] + num_tokens`` of ``slots[i]`` will overwrite."""
        self._check_open()
        if self._draft is not None:
            raise EngineStateError("a draft is under way; finish() it before the next begin()")
        if not 0 < whole(num_tokens, "num_tokens") <= self._max_tokens:
            raise PlanError(f"a draft of {num_tokens} tokens; expected 1 to max_tokens={self._max_tokens}")
        slots, positions = several(slots, "slots"), several(positions, "positions")
        if len(slots) != len(positions) or len(slots) * num_tokens > self._num_rows:
            raise PlanError(
                f"{len(slots)} slots, {len(positions)} positions and {num_tokens} tokens each; expected one position "
                f"a slot and at most {self._num_rows} rows in all"
            )
        places: dict[int, int] = {}
        for slot, position in zip((whole(slot, "a slot") for slot in slots), positions, strict=True):
            if not 0 <= slot < self._group.num_blocks:
                raise BlockIndexError(f"slot {slot} is out of range; there are {self._group.num_blocks}", slot=slot)
            if slot in places:
                raise PlanError(f"slot {slot} is named twice; a sequence has one slot and one draft", slot=slot)
            places[slot] = not_negative(position, f"the position of slot {slot}")
        draft = _Draft(tuple(places.items()), num_tokens)
        self._move(draft, [0] * len(places), restore=False)
        self._draft = draft

    def finish(self, accepted: Sequence[int]) -> None:
        """Put back the rows of the tokens after the first ``accepted[i]`` of each sequence."""
        self._check_open()
        draft = self._draft
        if draft is None:
            raise EngineStateError("no draft is under way; begin() one first")
        accepted = several(accepted, "accepted")
        if len(accepted) != len(draft.places):
            raise PlanError(f"{len(accepted)} accepted counts for {len(draft.places)} sequences; expected one each")
        for count, (slot, _) in zip(accepted, draft.places, strict=True):
            if not 0 <= whole(count, "an accepted count") <= draft.num_tokens:
                raise PlanError(f"slot {slot}: {count} draft tokens accepted; expected 0 to {draft.num_tokens}")
        self._move(draft, accepted, restore=True)
        self._draft = None

    def close(self) -> None:
        """Give the scratch memory back; a draft under way is forgotten. Twice is once."""
        if not self._closed:
            self._closed = True
            self._draft = None
            self._rings.clear()
            self._group.drop(self._scratch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStateError("this transaction is closed; make another")
        self._engine.group(self._group.plan.name)  # raises when the engine is asleep or closed
        if self._engine.generation != self._generation:
            raise EngineStateError(
                "the engine slept since this transaction was made, and its memory moved; close it and make another"
            )

    def _move(self, draft: _Draft, first: Sequence[int], *, restore: bool) -> None:
        rows = [
            (slot, position + token, number * draft.num_tokens + token)
            for number, (slot, position) in enumerate(draft.places)
            for token in range(first[number], draft.num_tokens)
        ]
        if rows:
            for ring in self._rings:
                ring.move(rows, restore=restore)


class _Draft(NamedTuple):
    """Slot and first position of every sequence, and how many tokens each of them drafts."""

    places: tuple[tuple[int, int], ...]
    num_tokens: int


def _scratch(
    plan: GroupPlan, rings: Sequence[Ring], max_sequences: int, max_tokens: int
) -> tuple[CacheLayout, int, tuple[tuple[Ring, int], ...]]:
    """The layout and entries of the kept rows, a pool each for ``(ring, spec index)``."""
    if not isinstance(plan, GroupPlan):
        raise TypeError(f"plan must be the plan of a state group, not {plan!r}")
    max_tokens = positive(max_tokens, "max_tokens")
    num_rows = positive(max_sequences, "max_sequences") * max_tokens
    rings = several(rings, "rings")
    for ring in rings:
        if not isinstance(ring, Ring):
            raise TypeError(f"rings must be of Ring, such as Ring('window'), not {ring!r}")
    names = [ring.name for ring in rings]
    if not names:
        raise PlanError("no rings given; expected at least one window state")
    if len(set(names)) != len(names):
        raise PlanError(f"rings {names} repeat; a state is one ring")
    found = tuple((ring, index) for ring in rings for index in _find_ring(plan, ring, max_tokens))
    rows = [replace(plan.specs[index], shape=plan.specs[index].shape[1:], axes=(), planes=()) for _, index in found]
    return contiguous_layout(rows), num_rows, found


def _find_ring(plan: GroupPlan, ring: Ring, max_tokens: int) -> tuple[int, ...]:
    indices = tuple(index for index, spec in enumerate(plan.specs) if spec.name == ring.name)
    if not indices:
        names = ", ".join(dict.fromkeys(spec.name for spec in plan.specs))
        raise PlanError(f"state {ring.name!r} does not exist in group {plan.name!r}; the states are {names}")
    for spec in (plan.specs[index] for index in indices):
        if spec.axes[:1] != ("token",) or not spec.page_nbytes:
            raise PlanError(
                f"state {ring.name!r} has axes {spec.axes} and {spec.page_nbytes} bytes; the first axis of a ring is "
                "'token', its rows",
                cache=ring.name,
            )
        if spec.planes:
            raise PlanError(f"state {ring.name!r} has planes, so its rows do not stand one after another")
        most = min(spec.shape[0], ring.max_tokens or spec.shape[0])
        if max_tokens > most:
            raise PlanError(
                f"a draft of {max_tokens} tokens is too long for ring {ring.name!r}, which takes {most}; "
                "draft fewer tokens",
                cache=ring.name,
            )
    return indices
