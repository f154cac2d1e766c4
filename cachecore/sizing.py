"""Memory to counts: how many blocks and slots of every group fit, or a refusal that computes the remedy.

Plan sets are sized together: a draft or memory model's groups share block tables, and so counts,
with the target's groups of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cachecore.budget import (
    Plans,
    budget_nbytes,
    given_counts,
    group_names,
    holding_of,
    holdings_of,
    rank_memory,
    sequences,
    told_groups,
)
from cachecore.errors import PlanError
from cachecore.group_plan import GroupPlan
from cachecore.holding import UNBOUNDED as LONGEST
from cachecore.holding import longest_held, units_held
from cachecore.meaning import not_negative, positive
from cachecore.solving import rank_nbytes
from cachecore.tier import Wanted, check_tier, solve_tier

__all__ = [
    "UNBOUNDED",
    "SizingAnswer",
    "check_fit",
    "counts_for",
    "fit",
    "longest_sequence",
    "request_demand",
    "request_units",
    "reserved_nbytes",
    "solve",
]

UNBOUNDED = LONGEST
"""The longest sequence where every group is bounded by its window: no length is too long."""


@dataclass(frozen=True, slots=True)
class SizingAnswer:
    """What fits. ``num_requests`` sequences of ``context_length`` tokens fit at once (None: no length was given).

    ``padding_nbytes`` of the ``needed_nbytes`` hold no payload; ``longest_sequence`` is in tokens.
    """

    counts: Mapping[str, int]
    needed_nbytes: int
    budget_nbytes: int
    padding_nbytes: int
    longest_sequence: int
    context_length: int | None = None
    num_requests: int | None = None


def fit(
    plans: Plans,
    *,
    memory_nbytes: int,
    ratio: float = 1.0,
    reserve_nbytes: int = 0,
    context_length: int | None = None,
    in_flight_tokens: int = 0,
    concurrency: int | None = None,
    num_blocks: Mapping[str, int] | int | None = None,
    host: bool = False,
) -> dict[str, int]:
    """Blocks and slots per group; :func:`solve` takes the same and says more about the answer."""
    answer = solve(
        plans,
        memory_nbytes=memory_nbytes,
        ratio=ratio,
        reserve_nbytes=reserve_nbytes,
        context_length=context_length,
        in_flight_tokens=in_flight_tokens,
        concurrency=concurrency,
        num_blocks=num_blocks,
        host=host,
    )
    return dict(answer.counts)


def solve(
    plans: Plans,
    *,
    memory_nbytes: int,
    ratio: float = 1.0,
    reserve_nbytes: int = 0,
    context_length: int | None = None,
    in_flight_tokens: int = 0,
    concurrency: int | None = None,
    num_blocks: Mapping[str, int] | int | None = None,
    host: bool = False,
) -> SizingAnswer:
    """Counts per group that fit ``memory_nbytes * ratio - reserve_nbytes``, alignment included.

    Several groups share the memory by what a sequence of ``context_length`` tokens holds of each:
    full attention grows with it, a window is bounded, a state is one slot. ``concurrency`` such sequences
    must fit at once: one unless given, and on the host tier none. Groups that ``num_blocks`` names (blocks,
    or slots of a state group) keep the count given there, which is checked; the rest of the memory is
    solved for the others.

    Raises
    ------
    PlanError
        When several groups leave their shares open (no ``context_length``), or an input makes no sense.
    AllocationError
        When it does not fit: bytes needed, bytes there, the longest sequence that fits.
    """
    rank = rank_memory(plans, budget_nbytes(memory_nbytes, ratio, reserve_nbytes), host=host)
    length, number = sequences(context_length, concurrency, host=host)
    answer = solve_tier(
        {"this budget": rank},
        holdings_of(plans, in_flight_tokens),
        Wanted(length, number, given_counts(plans, num_blocks, "num_blocks")),
    )
    return SizingAnswer(
        counts=answer.counts,
        needed_nbytes=rank.budget_nbytes - answer.spare_nbytes[0],
        budget_nbytes=rank.budget_nbytes,
        padding_nbytes=answer.padding_nbytes[0],
        longest_sequence=answer.longest_sequence,
        context_length=length,
        num_requests=answer.num_requests,
    )


def counts_for(plans: Plans, counts: int | Mapping[str, int], what: str) -> dict[str, int]:
    """Read units per group: a mapping with every group, or one number for a single group (0 for all)."""
    names = group_names(plans)
    if counts is None:
        raise TypeError(f"{what} must be a number, or a number for each of the groups {', '.join(names)}, not None")
    result = given_counts(plans, counts, what)
    if len(result) != len(names):
        told = told_groups(list(result)) if result else "no group"
        raise PlanError(f"{what} names {told}, but the plan has {told_groups(names)}; give a count for each")
    return result


def reserved_nbytes(plans: Plans, counts: int | Mapping[str, int], *, host: bool = False) -> int:
    """Bytes that the buffers of all groups take, exactly."""
    return rank_nbytes(rank_memory(plans, 0, host=host), counts_for(plans, counts, "counts"))


def request_units(plan: GroupPlan, num_tokens: int, in_flight_tokens: int = 0) -> int:
    """Blocks or slots of one group that a sequence of ``num_tokens`` holds at most.

    A window keeps its last ``window - 1`` tokens and the ``in_flight_tokens`` of one forward pass. A
    state is one slot.
    """
    return holding_of(plan, in_flight_tokens).units(not_negative(num_tokens, "num_tokens"))


def request_demand(plans: Plans, context_length: int, in_flight_tokens: int = 0) -> dict[str, int]:
    """Blocks or slots of every group that a sequence of ``context_length`` tokens holds at most."""
    return units_held(holdings_of(plans, in_flight_tokens), positive(context_length, "context_length"))


def longest_sequence(plans: Plans, counts: int | Mapping[str, int], in_flight_tokens: int = 0) -> int:
    """Tokens of the longest single sequence that fits ``counts``; :data:`UNBOUNDED` when windows bound it."""
    return longest_held(holdings_of(plans, in_flight_tokens), counts_for(plans, counts, "counts"))


def check_fit(
    plans: Plans,
    counts: int | Mapping[str, int],
    free_nbytes: int,
    where: str,
    *,
    host: bool = False,
    in_flight_tokens: int = 0,
) -> None:
    """Raise :class:`AllocationError` unless ``counts`` fit ``free_nbytes`` in ``where``, saying what would."""
    if not isinstance(where, str):
        raise TypeError(f"where must be a name for the memory, not {where!r}")
    rank = rank_memory(plans, not_negative(free_nbytes, "free_nbytes"), host=host)
    check_tier({where: rank}, holdings_of(plans, in_flight_tokens), counts_for(plans, counts, "counts"))
