"""What one sequence holds of each group, as numbers that can travel: from tokens to units, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from cachecore.solving import RankMemory, rank_nbytes

__all__ = ["UNBOUNDED", "Holding", "longest_fitting", "longest_held", "units_held"]

UNBOUNDED = 1 << 62
"""Tokens that no sequence reaches: what a window or a slot bounds may be of any length."""

_NONE: Mapping[str, int] = MappingProxyType({})


class Holding(NamedTuple):
    """One unit (block or slot) for every ``unit_tokens`` tokens, at most ``most_units`` (None: as many as there are).

    A slot holds any number of tokens: ``Holding(UNBOUNDED, 1)``.
    """

    unit_tokens: int
    most_units: int | None = None

    def units(self, num_tokens: int) -> int:
        """Units of a sequence of ``num_tokens``."""
        whole = -(-num_tokens // self.unit_tokens)
        return whole if self.most_units is None else min(whole, self.most_units)

    def longest(self, num_units: int) -> int:
        """Tokens of the longest sequence that ``num_units`` hold."""
        if self.most_units is not None and num_units >= self.most_units:
            return UNBOUNDED
        return num_units * self.unit_tokens

    def joined(self, other: Holding) -> Holding:
        """What models of one block table hold together: what either of them needs."""
        if self.most_units is None or other.most_units is None:
            return Holding(self.unit_tokens)
        return Holding(self.unit_tokens, max(self.most_units, other.most_units))


def units_held(holdings: Mapping[str, Holding], num_tokens: int) -> dict[str, int]:
    """Units of every group that a sequence of ``num_tokens`` holds."""
    return {name: holding.units(num_tokens) for name, holding in holdings.items()}


def longest_held(holdings: Mapping[str, Holding], counts: Mapping[str, int]) -> int:
    """Tokens of the longest single sequence that ``counts`` hold; :data:`UNBOUNDED` when windows bound it."""
    return min((holding.longest(counts[name]) for name, holding in holdings.items()), default=UNBOUNDED)


def longest_fitting(
    memories: Sequence[RankMemory],
    holdings: Mapping[str, Holding],
    *,
    concurrency: int = 1,
    given: Mapping[str, int] = _NONE,
) -> int:
    """Tokens of the longest sequence of which ``concurrency`` fit every memory, in no proportion but their own.

    Groups whose counts are ``given`` keep them.
    """

    def fits(length: int) -> bool:
        wanted = {name: units * concurrency for name, units in units_held(holdings, length).items()}
        if any(wanted[name] > count for name, count in given.items() if name in wanted):
            return False
        held = {**wanted, **given}
        return all(rank_nbytes(memory, held) <= memory.budget_nbytes for memory in memories)

    low, high = 0, UNBOUNDED + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
