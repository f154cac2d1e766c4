"""Memory to counts: how many blocks and slots of every group fit, or a refusal that computes the remedy.

Plan sets are sized together: a draft or memory model's groups share block tables, and so counts,
with the target's groups of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from cachecore.budget import Plans, as_sets, budget_nbytes, given_counts, group_names, group_plans, rank_memory
from cachecore.errors import AllocationError, PlanError
from cachecore.group_plan import GroupPlan
from cachecore.meaning import not_negative, positive
from cachecore.plan import BlockCachePlan
from cachecore.solving import RankMemory, rank_nbytes, solve_counts

__all__ = [
    "UNBOUNDED",
    "SizingAnswer",
    "check_fit",
    "counts_for",
    "fit",
    "longest_fitting",
    "longest_sequence",
    "request_demand",
    "request_units",
    "reserved_nbytes",
    "solve",
]

UNBOUNDED = 1 << 62
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
    """Blocks and slots per group; :func:`solve` says more about the same answer."""
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
    full attention grows with it, a window is bounded, a state is one slot. ``concurrency`` is how
    many such sequences must fit. Groups that ``num_blocks`` names (blocks, or slots of a state group)
    keep the count given there, which is checked; the rest of the memory is solved for the others.

    Raises
    ------
    PlanError
        When several groups leave their shares open (no ``context_length``), or an input makes no sense.
    AllocationError
        When it does not fit: bytes needed, bytes there, the longest sequence that fits.
    """
    sets = as_sets(plans)
    if concurrency is not None:
        if context_length is None:
            raise PlanError("concurrency counts sequences of one length; give context_length too")
        positive(concurrency, "concurrency")
    given = given_counts(sets, num_blocks, "num_blocks")
    rank = rank_memory(sets, budget_nbytes(memory_nbytes, ratio, reserve_nbytes), host=host)
    demand = request_demand(sets, context_length, in_flight_tokens, given=given)
    solved = solve_counts([rank], demand, given)
    if solved is None:
        _refuse(sets, rank, {**dict.fromkeys(demand, 1), **given}, "this budget", in_flight_tokens)
    counts = {name: solved[name] for name in group_names(sets)}
    requests = None
    if context_length is not None:
        wanted = request_demand(sets, context_length, in_flight_tokens)
        requests = min(counts[name] // units for name, units in wanted.items())
        if concurrency is not None and requests < concurrency:
            _refuse_concurrency(sets, rank, wanted, given, concurrency, in_flight_tokens, context_length)
    needed_nbytes = rank_nbytes(rank, counts)
    return SizingAnswer(
        counts=counts,
        needed_nbytes=needed_nbytes,
        budget_nbytes=rank.budget_nbytes,
        padding_nbytes=needed_nbytes - _payload_nbytes(sets, counts, host),
        longest_sequence=longest_sequence(sets, counts, in_flight_tokens),
        context_length=context_length,
        num_requests=requests,
    )


def counts_for(plans: Plans, counts: int | Mapping[str, int], what: str) -> dict[str, int]:
    """Read units per group: a mapping with every group, or one number for a single group (0 for all)."""
    names = group_names(plans)
    result = given_counts(plans, counts, what)
    if len(result) != len(names):
        raise PlanError(f"{what} names groups {sorted(result)}, but the plan has {sorted(names)}")
    return result


def reserved_nbytes(plans: Plans, counts: Mapping[str, int], *, host: bool = False) -> int:
    """Bytes that the buffers of all groups take, exactly."""
    return rank_nbytes(rank_memory(plans, 0, host=host), counts)


def request_units(plan: GroupPlan, num_tokens: int, in_flight_tokens: int = 0) -> int:
    """Blocks or slots of one group that a sequence of ``num_tokens`` holds at most.

    A window keeps its last ``window - 1`` tokens and the ``in_flight_tokens`` of one forward pass,
    anywhere within blocks, so one more block than their number fills. A state is one slot.
    """
    if not isinstance(plan, BlockCachePlan):
        return 1
    block = plan.geometry.logical_block_size
    whole_sequence = -(-num_tokens // block)
    window = plan.group.window
    if window is None:
        return whole_sequence
    return min(whole_sequence, -(-(window - 1 + max(1, in_flight_tokens)) // block) + 1)


def request_demand(
    plans: Plans, context_length: int | None, in_flight_tokens: int = 0, *, given: Mapping[str, int] | None = None
) -> dict[str, int]:
    """What one sequence of ``context_length`` tokens holds of every group whose count is not ``given``.

    Without a length a single group's proportion does not matter; several are refused.
    """
    not_negative(in_flight_tokens, "in_flight_tokens")
    length = None if context_length is None else positive(context_length, "context_length")
    demand: dict[str, int] = {}
    for plan in group_plans(plans):
        if plan.name not in (given or {}):
            units = 1 if length is None else request_units(plan, length, in_flight_tokens)
            demand[plan.name] = max(demand.get(plan.name, 0), units)  # models of one block table keep what either needs
    if length is None and len(demand) > 1:
        raise PlanError(
            f"groups {', '.join(demand)} share this memory by what one sequence needs of each; "
            "give context_length, the tokens of a typical sequence"
        )
    return demand


def longest_sequence(plans: Plans, counts: Mapping[str, int], in_flight_tokens: int = 0) -> int:
    """Tokens of the longest single sequence that fits ``counts``; :data:`UNBOUNDED` when windows bound it."""
    lengths = [UNBOUNDED]
    for plan in group_plans(plans):
        if not isinstance(plan, BlockCachePlan):
            lengths.append(UNBOUNDED if counts[plan.name] else 0)
        elif request_units(plan, UNBOUNDED, in_flight_tokens) > counts[plan.name]:
            lengths.append(counts[plan.name] * plan.geometry.logical_block_size)
    return min(lengths)


def longest_fitting(
    plans: Plans,
    rank: RankMemory,
    in_flight_tokens: int = 0,
    *,
    concurrency: int = 1,
    given: Mapping[str, int] | None = None,
) -> int:
    """Tokens of the longest sequence of which ``concurrency`` fit the rank's budget, in no proportion but their own."""
    sets = as_sets(plans)
    held = dict(given or {})

    def fits(length: int) -> bool:
        wanted = {name: n * concurrency for name, n in request_demand(sets, length, in_flight_tokens).items()}
        if any(wanted[name] > count for name, count in held.items()):
            return False
        return rank_nbytes(rank, wanted | held) <= rank.budget_nbytes

    low, high = 0, UNBOUNDED + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def check_fit(
    plans: Plans,
    counts: Mapping[str, int],
    free_nbytes: int,
    where: str,
    *,
    host: bool = False,
    in_flight_tokens: int = 0,
) -> None:
    """Raise :class:`AllocationError` unless ``counts`` fit ``free_nbytes``, saying what would."""
    rank = rank_memory(plans, free_nbytes, host=host)
    if rank_nbytes(rank, counts) > free_nbytes:
        _refuse(plans, rank, counts, where, in_flight_tokens)


def _payload_nbytes(plans: Plans, counts: Mapping[str, int], host: bool) -> int:
    total = 0
    for plan in group_plans(plans):
        layout = plan.host_layout if host else plan.layout
        total += layout.payload_nbytes * plan.num_entries(counts[plan.name], host=host)
    return total


def _refuse(plans: Plans, rank: RankMemory, counts: Mapping[str, int], where: str, in_flight_tokens: int) -> NoReturn:
    needed = rank_nbytes(rank, counts)
    asked = {name: max(1, count) for name, count in counts.items() if rank.groups[name].unit_nbytes}
    fits = solve_counts([rank], asked, dict.fromkeys(set(counts) - set(asked), 0)) or {}
    fits = {name: fits.get(name, 0) for name in counts}
    longest = longest_fitting(plans, rank, in_flight_tokens)
    told = "is of any length" if longest == UNBOUNDED else f"has {longest} tokens"
    raise AllocationError(
        f"{needed} bytes needed for {dict(counts)}, but {rank.budget_nbytes} bytes are there in {where}; in this "
        f"proportion {fits} fit, and the longest sequence that fits alone {told}. Ask for less or give more memory",
        needed_nbytes=needed,
        free_nbytes=rank.budget_nbytes,
        longest_sequence=longest,
        fits=fits,
    )


def _refuse_concurrency(
    plans: Plans,
    rank: RankMemory,
    wanted: Mapping[str, int],
    given: Mapping[str, int],
    concurrency: int,
    in_flight_tokens: int,
    context_length: int,
) -> NoReturn:
    needed = {name: units * concurrency for name, units in wanted.items()}
    short = {name: count for name, count in given.items() if count < needed[name]}
    nbytes = rank_nbytes(rank, needed | dict(given))
    longest = longest_fitting(plans, rank, in_flight_tokens, concurrency=concurrency, given=given)
    why = (
        f"take {needed}, but the counts given are {short}"
        if short
        else f"need {nbytes} bytes, but {rank.budget_nbytes} bytes are there"
    )
    raise AllocationError(
        f"{concurrency} sequences of {context_length} tokens {why}; the longest length of which {concurrency} fit is "
        f"{longest} tokens. Ask for less or give more",
        needed_nbytes=nbytes,
        free_nbytes=rank.budget_nbytes,
        longest_sequence=longest,
    )
