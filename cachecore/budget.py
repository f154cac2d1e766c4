"""What sizing starts from: plan sets as given, counts as given, and the bytes that one rank has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cachecore.errors import PlanError
from cachecore.group_plan import GroupPlan
from cachecore.holding import UNBOUNDED, Holding
from cachecore.meaning import not_negative, positive
from cachecore.plan import BlockCachePlan
from cachecore.plan_set import CachePlanSet
from cachecore.solving import GroupBytes, RankMemory

__all__ = [
    "Plans",
    "as_sets",
    "budget_nbytes",
    "given_counts",
    "group_names",
    "group_plans",
    "holding_of",
    "holdings_of",
    "named_sets",
    "rank_memory",
    "sequences",
    "told_groups",
]

Plans = CachePlanSet | Sequence[CachePlanSet] | Mapping[str, CachePlanSet]
"""One plan set, several, or several by the name of their model (``target``, ``draft``, ``memory``)."""


def named_sets(plans: Plans) -> dict[str, CachePlanSet]:
    """Plan sets by name, their position where they have none; same-named groups must agree on what a unit is."""
    if isinstance(plans, CachePlanSet):
        plans = (plans,)
    if not isinstance(plans, (Mapping, Sequence)):
        raise TypeError(f"plans must be a CachePlanSet or several of them, not {plans!r}")
    named = dict(plans) if isinstance(plans, Mapping) else {str(number): one for number, one in enumerate(plans)}
    if not named or not all(isinstance(one, CachePlanSet) for one in named.values()):
        raise TypeError(f"plans must be a CachePlanSet or several of them, not {plans!r}")
    first: dict[str, GroupPlan] = {}
    for plan in (plan for one in named.values() for plan in one):
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
    return named


def as_sets(plans: Plans) -> tuple[CachePlanSet, ...]:
    """The plan sets of :func:`named_sets`."""
    return tuple(named_sets(plans).values())


def group_plans(plans: Plans) -> Iterator[GroupPlan]:
    """Every group's plan of every plan set; groups of one name come once for each set that has them."""
    for one in as_sets(plans):
        yield from one


def group_names(plans: Plans) -> tuple[str, ...]:
    """The groups of all plan sets, each once."""
    return tuple(dict.fromkeys(plan.name for plan in group_plans(plans)))


def given_counts(plans: Plans, counts: int | Mapping[str, int] | None, what: str) -> dict[str, int]:
    """Read units of some groups: a mapping, or one number for a single group (0 for all); None gives none."""
    names = group_names(plans)
    if counts is None:
        return {}
    if not isinstance(counts, Mapping):
        number = not_negative(counts, what)
        if len(names) > 1 and number:
            raise PlanError(f"{what} is {number}, but the plan has groups {', '.join(names)}; give one each")
        return dict.fromkeys(names, number)
    unknown = sorted(map(str, set(counts) - set(names)))
    if unknown:
        raise PlanError(f"{what} names {told_groups(unknown)}, but the plan has {told_groups(names)}", group=unknown[0])
    return {name: not_negative(counts[name], f"{what} of group {name!r}") for name in names if name in counts}


def told_groups(names: Sequence[str]) -> str:
    """``group 'full'``, or ``groups 'full', 'sliding'``."""
    return f"group{'s' * (len(names) != 1)} {', '.join(map(repr, names))}"


def rank_memory(plans: Plans, budget: int, *, host: bool = False) -> RankMemory:
    """What a solver needs to know of one rank: numbers only, so that they can travel."""
    costs: dict[str, GroupBytes] = {}
    for plan in group_plans(plans):
        unit = plan.unit_nbytes(host=host)
        layout = plan.host_layout if host else plan.layout
        payload = layout.payload_nbytes * plan.num_entries(1, host=host)
        cost = GroupBytes(unit, plan.reserved_nbytes(1, host=host) - unit, payload)
        costs[plan.name] = costs.get(plan.name, GroupBytes(0)).plus(cost)
    return RankMemory(costs, budget)


def holding_of(plan: GroupPlan, in_flight_tokens: int = 0) -> Holding:
    """What one sequence holds of one group.

    A window keeps its last ``window - 1`` tokens and the ``in_flight_tokens`` of one forward pass,
    anywhere within blocks, so one more block than their number fills. A state is one slot.
    """
    if not isinstance(plan, GroupPlan):
        raise TypeError(f"plan must be the plan of a group, not {plan!r}")
    in_flight = max(1, not_negative(in_flight_tokens, "in_flight_tokens"))
    if not isinstance(plan, BlockCachePlan):
        return Holding(UNBOUNDED, 1)
    block, window = plan.geometry.logical_block_size, plan.group.window
    return Holding(block, None if window is None else -(-(window - 1 + in_flight) // block) + 1)


def holdings_of(plans: Plans, in_flight_tokens: int = 0) -> dict[str, Holding]:
    """What one sequence holds of every group; models of one block table keep what either needs."""
    holdings: dict[str, Holding] = {}
    for plan in group_plans(plans):
        mine = holding_of(plan, in_flight_tokens)
        holdings[plan.name] = holdings.get(plan.name, mine).joined(mine)
    return holdings


def sequences(
    context_length: int | None, concurrency: int | None, *, what: str = "concurrency", host: bool = False
) -> tuple[int | None, int]:
    """Length and number of the sequences that must fit at once.

    Unless ``concurrency`` is given, one must, on the host tier none. Without a length none is asked for.
    """
    length = None if context_length is None else positive(context_length, "context_length")
    if concurrency is None:
        return length, 0 if host or length is None else 1
    number = positive(concurrency, what)
    if length is None:
        raise PlanError(f"{what} counts sequences of one length; give context_length too")
    return length, number


def budget_nbytes(memory_nbytes: int, ratio: float = 1.0, reserve_nbytes: int = 0) -> int:
    """Bytes left for caches of ``memory_nbytes``: its ``ratio``, without ``reserve_nbytes``."""
    memory = not_negative(memory_nbytes, "memory_nbytes")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
        raise PlanError(f"ratio is {ratio!r}; expected a number above 0 and at most 1")
    reserve = not_negative(reserve_nbytes, "reserve_nbytes")
    share = memory if ratio == 1 else int(memory * ratio)
    return max(0, share - reserve)
