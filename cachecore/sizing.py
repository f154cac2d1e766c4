"""Memory to counts: how many blocks and slots of every group fit, or a refusal that computes the remedy.

Plan sets are sized together: a draft or memory model's groups share block tables, and so counts,
with the target's groups of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from cachecore.errors import AllocationError, PlanError
from cachecore.group_plan import GroupPlan
from cachecore.meaning import positive, whole
from cachecore.plan import BlockCachePlan
from cachecore.plan_set import CachePlanSet
from cachecore.solving import GroupBytes, RankMemory, rank_nbytes, solve_counts

__all__ = [
    "UNBOUNDED",
    "SizingAnswer",
    "budget_nbytes",
    "check_fit",
    "counts_for",
    "fit",
    "longest_sequence",
    "rank_memory",
    "request_demand",
    "request_units",
    "reserved_nbytes",
    "solve",
]

Plans = CachePlanSet | Sequence[CachePlanSet]

UNBOUNDED = 1 << 62
"""The longest sequence where every group is bounded by its window: no length is too long."""


@dataclass(frozen=True, slots=True)
class SizingAnswer:
    """What fits. ``num_requests`` sequences of ``context_length`` tokens fit at once (None: no length was given)."""

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
    many such sequences must fit. Explicit ``num_blocks`` (with slots, for state groups) are checked.

    Raises
    ------
    PlanError
        When several groups leave their shares open (no ``context_length``), or an input makes no sense.
    AllocationError
        When it does not fit: bytes needed, bytes there, the longest sequence that fits.
    """
    sets = as_sets(plans)
    budget = budget_nbytes(memory_nbytes, ratio, reserve_nbytes)
    demand = request_demand(sets, context_length, in_flight_tokens) if num_blocks is None or context_length else None
    if num_blocks is not None:
        counts = counts_for(sets, num_blocks, "num_blocks")
        check_fit(sets, counts, budget, "this budget", host=host, in_flight_tokens=in_flight_tokens)
    else:
        rank = rank_memory(sets, budget, host=host)
        solved = solve_counts([rank], demand or {})
        if solved is None:
            _refuse(rank, dict.fromkeys(demand or {}, 1), sets, "this budget", in_flight_tokens, host)
        counts = solved
    requests = None
    if demand is not None and context_length is not None:
        requests = min(counts[name] // wanted for name, wanted in demand.items())
        if concurrency is not None and requests < positive(concurrency, "concurrency"):
            _refuse_concurrency(sets, demand, budget, concurrency, context_length, in_flight_tokens, host)
    elif concurrency is not None:
        raise PlanError("concurrency counts sequences of one length; give context_length too")
    return SizingAnswer(
        counts=counts,
        needed_nbytes=reserved_nbytes(sets, counts, host=host),
        budget_nbytes=budget,
        padding_nbytes=_padding_nbytes(sets, counts, host),
        longest_sequence=longest_sequence(sets, counts, in_flight_tokens),
        context_length=context_length,
        num_requests=requests,
    )


def as_sets(plans: Plans) -> tuple[CachePlanSet, ...]:
    """One or several plan sets, as a tuple; same-named groups must agree on what a unit is."""
    sets = (plans,) if isinstance(plans, CachePlanSet) else tuple(plans)
    if not sets or not all(isinstance(one, CachePlanSet) for one in sets):
        raise TypeError(f"plans must be a CachePlanSet or a sequence of them, not {plans!r}")
    first: dict[str, GroupPlan] = {}
    for plan in (plan for one in sets for plan in one):
        other = first.setdefault(plan.name, plan)
        same = other.kind == plan.kind
        if same and isinstance(plan, BlockCachePlan) and isinstance(other, BlockCachePlan):
            same = plan.geometry.logical_block_size == other.geometry.logical_block_size
        if not same:
            raise PlanError(
                f"group {plan.name!r} is a {other.kind} group in one plan set and differs in another; groups of one "
                "name share a block table, so kind and logical block size must agree. Rename one of them",
                group=plan.name,
            )
    return sets


def counts_for(plans: Plans, counts: int | Mapping[str, int], what: str) -> dict[str, int]:
    """Read units per group: a mapping with every group, or one number for a single group (0 for all)."""
    names = tuple(dict.fromkeys(name for one in as_sets(plans) for name in one.names))
    if not isinstance(counts, Mapping):
        number = whole(counts, what)
        if len(names) > 1 and number:
            raise PlanError(f"{what} is {number}, but the plan has groups {', '.join(names)}; give one each")
        counts = dict.fromkeys(names, number)
    if set(counts) != set(names):
        raise PlanError(f"{what} names groups {sorted(counts)}, but the plan has {sorted(names)}")
    result = {}
    for name in names:
        number = whole(counts[name], f"{what} of group {name!r}")
        if number < 0:
            raise PlanError(f"{what} of group {name!r} is {number}; expected zero or more", group=name)
        result[name] = number
    return result


def rank_memory(plans: Plans, budget: int, *, host: bool = False) -> RankMemory:
    """What a solver needs to know of one rank: numbers only, so that they can travel."""
    costs: dict[str, GroupBytes] = {}
    for plan in (plan for one in as_sets(plans) for plan in one):
        unit = plan.unit_nbytes(host=host)
        earlier = costs.get(plan.name, GroupBytes(0))
        fixed = plan.reserved_nbytes(1, host=host) - unit
        costs[plan.name] = GroupBytes(earlier.unit_nbytes + unit, earlier.fixed_nbytes + fixed)
    return RankMemory(costs, budget)


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


def request_demand(plans: Plans, context_length: int | None, in_flight_tokens: int = 0) -> dict[str, int]:
    """What one sequence of ``context_length`` tokens holds of every group."""
    if whole(in_flight_tokens, "in_flight_tokens") < 0:
        raise PlanError(f"in_flight_tokens is {in_flight_tokens}; expected zero or more")
    groups = {plan.name: plan for one in as_sets(plans) for plan in one}
    if context_length is None:
        if len(groups) > 1:
            raise PlanError(
                f"groups {', '.join(groups)} share this memory by what one sequence needs of each; "
                "give context_length, the tokens of a typical sequence"
            )
        return dict.fromkeys(groups, 1)
    length = positive(context_length, "context_length")
    return {name: request_units(plan, length, in_flight_tokens) for name, plan in groups.items()}


def longest_sequence(plans: Plans, counts: Mapping[str, int], in_flight_tokens: int = 0) -> int:
    """Tokens of the longest single sequence that fits ``counts``; :data:`UNBOUNDED` when windows bound it."""
    lengths = [UNBOUNDED]
    for plan in (plan for one in as_sets(plans) for plan in one):
        if not isinstance(plan, BlockCachePlan):
            lengths.append(UNBOUNDED if counts[plan.name] else 0)
        elif request_units(plan, UNBOUNDED, in_flight_tokens) > counts[plan.name]:
            lengths.append(counts[plan.name] * plan.geometry.logical_block_size)
    return min(lengths)


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
        _refuse(rank, counts, plans, where, in_flight_tokens, host)


def budget_nbytes(memory_nbytes: int, ratio: float = 1.0, reserve_nbytes: int = 0) -> int:
    """Bytes left for caches of ``memory_nbytes``: its ``ratio``, without ``reserve_nbytes``."""
    if whole(memory_nbytes, "memory_nbytes") < 0:
        raise PlanError(f"memory_nbytes is {memory_nbytes}; expected zero or more")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
        raise PlanError(f"ratio is {ratio!r}; expected a number above 0 and at most 1")
    if whole(reserve_nbytes, "reserve_nbytes") < 0:
        raise PlanError(f"reserve_nbytes is {reserve_nbytes}; expected zero or more")
    share = memory_nbytes if ratio == 1 else int(memory_nbytes * ratio)
    return max(0, share - reserve_nbytes)


def _padding_nbytes(sets: Sequence[CachePlanSet], counts: Mapping[str, int], host: bool) -> int:
    total = 0
    for plan in (plan for one in sets for plan in one):
        layout = plan.host_layout if host else plan.layout
        total += layout.padding_nbytes * plan.num_entries(counts[plan.name], host=host)
    return total


def _refuse(
    rank: RankMemory,
    counts: Mapping[str, int],
    plans: Plans,
    where: str,
    in_flight_tokens: int,
    host: bool,
) -> NoReturn:
    needed = rank_nbytes(rank, counts)
    wanted = {name: max(1, count) for name, count in counts.items()}
    largest = solve_counts([rank], wanted) or dict.fromkeys(counts, 0)
    tokens = longest_sequence(plans, largest, in_flight_tokens)
    told = "any length" if tokens == UNBOUNDED else f"{tokens} tokens"
    raise AllocationError(
        f"{needed} bytes needed for {dict(counts)}, but {rank.budget_nbytes} bytes are there in {where}; the longest "
        f"sequence that fits has {told} ({largest}). Ask for less or give more memory",
        needed_nbytes=needed,
        free_nbytes=rank.budget_nbytes,
        longest_sequence=tokens,
        fits=largest,
    )


def _refuse_concurrency(
    sets: Sequence[CachePlanSet],
    demand: Mapping[str, int],
    budget: int,
    concurrency: int,
    context_length: int,
    in_flight_tokens: int,
    host: bool,
) -> NoReturn:
    needed = reserved_nbytes(sets, {name: wanted * concurrency for name, wanted in demand.items()}, host=host)

    def fits(length: int) -> bool:
        units = request_demand(sets, length, in_flight_tokens)
        return reserved_nbytes(sets, {name: n * concurrency for name, n in units.items()}, host=host) <= budget

    low, high = 0, context_length
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    raise AllocationError(
        f"{concurrency} sequences of {context_length} tokens need {needed} bytes, but {budget} bytes are there; the "
        f"longest length of which {concurrency} fit is {low} tokens. Ask for less or give more memory",
        needed_nbytes=needed,
        free_nbytes=budget,
        longest_sequence=low,
    )
