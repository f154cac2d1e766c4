"""Counts from bytes, over ranks and groups: integers in, integers out.

Every rank states what a unit (block or slot) of each group costs it and how much memory it has. One
count a group is agreed for all ranks, since block ids are shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from cachecore.errors import PlanError

__all__ = ["GroupBytes", "RankMemory", "joined", "rank_nbytes", "rank_padding_nbytes", "solve_counts"]

_NONE: Mapping[str, int] = MappingProxyType({})


class GroupBytes(NamedTuple):
    """What a group costs on one rank: ``fixed_nbytes`` once, ``unit_nbytes`` for each block or slot.

    ``payload_nbytes`` of each unit are used; the rest is padding, as all of ``fixed_nbytes`` is.
    """

    unit_nbytes: int
    fixed_nbytes: int = 0
    payload_nbytes: int = 0

    def nbytes(self, count: int) -> int:
        """Bytes of ``count`` units."""
        return self.fixed_nbytes + self.unit_nbytes * count if count else 0

    def padding_nbytes(self, count: int) -> int:
        """Bytes of ``count`` units that hold no payload."""
        return self.nbytes(count) - self.payload_nbytes * count

    def plus(self, other: GroupBytes) -> GroupBytes:
        """Both together: models of one group, or ranks of one memory."""
        return GroupBytes(*(mine + its for mine, its in zip(self, other, strict=True)))


class RankMemory(NamedTuple):
    """One rank: its groups' costs (a group it has no layers of is absent), and its budget."""

    groups: Mapping[str, GroupBytes]
    budget_nbytes: int


def rank_nbytes(rank: RankMemory, counts: Mapping[str, int]) -> int:
    """Bytes that ``counts`` take on one rank."""
    return sum(cost.nbytes(counts[name]) for name, cost in rank.groups.items())


def rank_padding_nbytes(rank: RankMemory, counts: Mapping[str, int]) -> int:
    """Bytes of those that hold no payload."""
    return sum(cost.padding_nbytes(counts[name]) for name, cost in rank.groups.items())


def joined(ranks: Sequence[RankMemory]) -> RankMemory:
    """Ranks that take from one memory, as one: their costs add up, the least budget that one of them saw holds."""
    costs: dict[str, GroupBytes] = {}
    for rank in ranks:
        for name, cost in rank.groups.items():
            costs[name] = costs.get(name, GroupBytes(0)).plus(cost)
    return RankMemory(costs, min(rank.budget_nbytes for rank in ranks))


def solve_counts(
    ranks: Sequence[RankMemory], demand: Mapping[str, int], given: Mapping[str, int] = _NONE
) -> dict[str, int] | None:
    """The most units in proportion to ``demand`` that fit every rank, at least one each; None if those do not.

    ``demand`` is what one sequence holds of each group; groups whose counts are ``given`` keep them.
    What proportion leaves over is filled up, the group with the least for its demand first, so that
    not one more unit of any group fits.
    """
    for name, wanted in demand.items():
        if wanted < 1:
            raise PlanError(f"group {name!r}: a sequence needs {wanted} units; expected at least one")
        if not any(rank.groups[name].unit_nbytes for rank in ranks if name in rank.groups):
            raise PlanError(
                f"group {name!r} has units of zero bytes on every rank; any number fits, so nothing is to size"
            )
    most = max(demand.values(), default=1)

    def scaled(share: int) -> dict[str, int]:
        return {**given, **{name: max(1, wanted * share // most) for name, wanted in demand.items()}}

    def fits(share: int) -> bool:
        counts = scaled(share)
        return all(rank_nbytes(rank, counts) <= rank.budget_nbytes for rank in ranks)

    if not fits(0):
        return None
    if not demand:
        return dict(given)
    low, high = 0, 1
    while fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    counts = scaled(low)
    for name in sorted(demand, key=lambda name: (Fraction(counts[name], demand[name]), name)):
        counts[name] += _room(ranks, counts, name)
    return counts


def _room(ranks: Sequence[RankMemory], counts: Mapping[str, int], name: str) -> int:
    """How many more units of one group fit on every rank."""
    return min(
        (rank.budget_nbytes - rank_nbytes(rank, counts)) // rank.groups[name].unit_nbytes
        for rank in ranks
        if name in rank.groups and rank.groups[name].unit_nbytes
    )
