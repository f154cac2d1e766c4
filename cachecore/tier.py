"""One tier, device or host, over all memories that it stands in: counts that fit them all, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from cachecore.errors import AllocationError, PlanError
from cachecore.holding import UNBOUNDED, Holding, longest_fitting, longest_held, units_held
from cachecore.nbytes import both_nbytes
from cachecore.solving import RankMemory, rank_nbytes, rank_padding_nbytes, solve_counts

__all__ = ["TierAnswer", "Wanted", "check_tier", "solve_tier"]

Memories = Mapping[str, RankMemory]
"""Every memory, by what an error calls it: a budget, a rank, the host of a node."""

Holdings = Mapping[str, Holding]


@dataclass(frozen=True, slots=True)
class Wanted:
    """``concurrency`` sequences of ``context_length`` tokens at once (None: one unit of each group).

    Groups whose counts are ``given`` keep them. With a concurrency of 0 the length only says in which
    proportion several groups share a memory.
    """

    context_length: int | None
    concurrency: int
    given: Mapping[str, int]


class TierAnswer(NamedTuple):
    """What fits; bytes are of each memory, in the order in which the memories were given."""

    counts: dict[str, int]
    spare_nbytes: tuple[int, ...]
    padding_nbytes: tuple[int, ...]
    longest_sequence: int
    num_requests: int | None


def solve_tier(memories: Memories, holdings: Holdings, wanted: Wanted) -> TierAnswer:
    """The most units of every group that fit all memories.

    Raises
    ------
    PlanError
        When several groups leave their shares open, or a count is given for a group that is not there.
    AllocationError
        When what is wanted does not fit: bytes needed, bytes there, the longest length that fits.
    """
    unknown = sorted(set(wanted.given) - set(holdings))
    if unknown:
        raise PlanError(
            f"a count is given for group {unknown[0]!r}, but the groups are {', '.join(sorted(holdings))}",
            group=unknown[0],
        )
    left = [name for name in holdings if name not in wanted.given]
    length = wanted.context_length
    if length is None and len(left) > 1:
        raise PlanError(
            f"groups {', '.join(left)} share this memory by what one sequence needs of each; "
            "give context_length, the tokens of a typical sequence"
        )
    units = dict.fromkeys(holdings, 1) if length is None else units_held(holdings, length)
    counts = solve_counts(list(memories.values()), {name: units[name] for name in left}, wanted.given)
    requests = 0 if counts is None else min(counts[name] // one for name, one in units.items())
    if length is not None and requests < wanted.concurrency:
        _refuse_sequences(memories, holdings, wanted, length, requests)
    if counts is None:
        _refuse_counts(memories, holdings, {**dict.fromkeys(holdings, 1), **wanted.given})
    return TierAnswer(
        {name: counts[name] for name in holdings},
        tuple(memory.budget_nbytes - rank_nbytes(memory, counts) for memory in memories.values()),
        tuple(rank_padding_nbytes(memory, counts) for memory in memories.values()),
        longest_held(holdings, counts),
        None if length is None else requests,
    )


def check_tier(memories: Memories, holdings: Holdings, counts: Mapping[str, int]) -> None:
    """Raise :class:`AllocationError` unless ``counts`` of all groups fit every memory."""
    if any(rank_nbytes(memory, counts) > memory.budget_nbytes for memory in memories.values()):
        _refuse_counts(memories, holdings, counts)


def _tightest(memories: Memories, counts: Mapping[str, int]) -> tuple[str, int, int]:
    """The memory that lacks most: what it is called, bytes needed there, bytes there."""
    needed = {where: rank_nbytes(memory, counts) for where, memory in memories.items()}
    where = max(needed, key=lambda name: needed[name] - memories[name].budget_nbytes)
    return where, needed[where], memories[where].budget_nbytes


def _refuse_counts(memories: Memories, holdings: Holdings, counts: Mapping[str, int]) -> NoReturn:
    where, needed, budget = _tightest(memories, counts)
    sized = {name for memory in memories.values() for name, cost in memory.groups.items() if cost.unit_nbytes}
    asked = {name: count for name, count in counts.items() if count and name in sized}
    fits = solve_counts(list(memories.values()), asked, dict.fromkeys(set(counts) - set(asked), 0)) or {}
    fits = {name: fits.get(name, 0) for name in counts}
    longest = longest_fitting(list(memories.values()), holdings)
    raise AllocationError(
        f"{both_nbytes(needed)} needed for {_listed(counts)}, but {_there(budget, where)}; in this proportion "
        f"{_listed(fits)} fit, and {_alone(longest)}. Ask for less or give more memory",
        where=where,
        needed_nbytes=needed,
        free_nbytes=budget,
        longest_sequence=longest,
        num_requests=None,
        fits=fits,
    )


def _refuse_sequences(memories: Memories, holdings: Holdings, wanted: Wanted, length: int, requests: int) -> NoReturn:
    number = wanted.concurrency
    asked = {name: units * number for name, units in units_held(holdings, length).items()}
    short = {name: count for name, count in wanted.given.items() if count < asked[name]}
    where, needed, budget = _tightest(memories, {**asked, **wanted.given})
    longest = longest_fitting(list(memories.values()), holdings, concurrency=number, given=wanted.given)
    what = f"{number} sequences of {length} tokens" if number > 1 else f"1 sequence of {length} tokens"
    if short:
        why = f"{what} {'take' if number > 1 else 'takes'} {_listed(asked)}, but the counts given are {_listed(short)}"
    else:
        why = f"{what} and the counts given need" if wanted.given else f"{what} {'need' if number > 1 else 'needs'}"
        why += f" {both_nbytes(needed)}, but {_there(budget, where)}"
    up_to = f"up to {longest} token{'s' * (longest != 1)} each" if longest else "at no length"
    fit = _alone(longest) if number == 1 else f"{requests} fit at once, and {number} do {up_to}"
    raise AllocationError(
        f"{why}; {fit}. Ask for less or give more memory",
        where=where,
        needed_nbytes=needed,
        free_nbytes=budget,
        longest_sequence=longest,
        num_requests=requests,
        fits=None,
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())


def _there(budget: int, where: str) -> str:
    """What a memory has; for none, where it went, since sizing is told a memory and what to leave of it."""
    none = "" if budget else " (the reserve is as large as the memory, or there is none)"
    return f"{both_nbytes(budget)} {'are' if budget != 1 else 'is'} there in {where}{none}"


def _alone(longest: int) -> str:
    if longest == UNBOUNDED:
        return "a sequence of any length fits alone"
    return f"the longest sequence that fits alone has {longest} token{'s' * (longest != 1)}"
