"""Memory to counts: how many blocks of every group fit, or a refusal that computes the remedy."""

from __future__ import annotations

from collections.abc import Mapping

from cachecore.errors import AllocationError, PlanError
from cachecore.meaning import positive, whole
from cachecore.plan import BlockCachePlan, CachePlanSet

__all__ = ["check_fit", "counts_for", "fit", "longest_sequence", "request_blocks", "reserved_nbytes"]


def counts_for(plans: CachePlanSet, counts: int | Mapping[str, int], what: str) -> dict[str, int]:
    """Read blocks per group: a mapping with every group, or one number for a single group (0 for all)."""
    if not isinstance(counts, Mapping):
        number = whole(counts, what)
        if len(plans) > 1 and number:
            raise PlanError(f"{what} is {number}, but the plan set has groups {', '.join(plans.names)}; give one each")
        counts = dict.fromkeys(plans.names, number)
    if set(counts) != set(plans.names):
        raise PlanError(f"{what} names groups {sorted(counts)}, but the plan set has {sorted(plans.names)}")
    result = {}
    for name in plans.names:
        number = whole(counts[name], f"{what} of group {name!r}")
        if number < 0:
            raise PlanError(f"{what} of group {name!r} is {number}; expected zero or more", group=name)
        result[name] = number
    return result


def reserved_nbytes(plans: CachePlanSet, counts: Mapping[str, int], *, host: bool = False) -> int:
    """Bytes that the buffers of all groups take, exactly."""
    return sum(plan.reserved_nbytes(counts[plan.name], host=host) for plan in plans)


def request_blocks(plan: BlockCachePlan, num_tokens: int, in_flight_tokens: int = 0) -> int:
    """Blocks of one group that a sequence of ``num_tokens`` holds at most.

    A window keeps its last ``window - 1`` tokens and the ``in_flight_tokens`` of one forward pass,
    anywhere within blocks, so one more block than their number fills.
    """
    block = plan.geometry.logical_block_size
    whole_sequence = -(-num_tokens // block)
    window = plan.group.window
    if window is None:
        return whole_sequence
    return min(whole_sequence, -(-(window - 1 + max(1, in_flight_tokens)) // block) + 1)


def longest_sequence(plans: CachePlanSet, counts: Mapping[str, int], in_flight_tokens: int = 0) -> int:
    """Tokens of the longest single sequence that fits ``counts``."""
    best: int | None = None
    for plan in plans:
        tokens = counts[plan.name] * plan.geometry.logical_block_size
        window = plan.group.window
        bounded = window is not None and request_blocks(plan, 1 << 62, in_flight_tokens) <= counts[plan.name]
        if not bounded:
            best = tokens if best is None else min(best, tokens)
    if best is None:  # every group is bounded by a window that fits: the sequence may grow without end
        return 1 << 62
    return best


def fit(
    plans: CachePlanSet,
    *,
    memory_nbytes: int,
    ratio: float = 1.0,
    reserve_nbytes: int = 0,
    context_length: int | None = None,
    in_flight_tokens: int = 0,
    num_blocks: Mapping[str, int] | int | None = None,
    host: bool = False,
) -> dict[str, int]:
    """Blocks per group that fit ``memory_nbytes * ratio - reserve_nbytes``, alignment included.

    Several groups share the memory by what a sequence of ``context_length`` tokens holds in each:
    full attention grows with it, a window does not. Explicit ``num_blocks`` are checked instead.

    Raises
    ------
    PlanError
        When several groups leave their shares open (no ``context_length``), or an input makes no sense.
    AllocationError
        When not one block of each group fits: bytes needed, bytes there, longest sequence that fits.
    """
    budget = _budget(memory_nbytes, ratio, reserve_nbytes)
    if num_blocks is not None:
        counts = counts_for(plans, num_blocks, "num_blocks")
        check_fit(plans, counts, budget, "this budget", host=host)
        return counts
    solved = _solve(plans, _demand(plans, context_length, in_flight_tokens), budget, host)
    if solved is None:
        check_fit(plans, dict.fromkeys(plans.names, 1), budget, "this budget", host=host)
    return solved or {}


def check_fit(
    plans: CachePlanSet, counts: Mapping[str, int], free_nbytes: int, where: str, *, host: bool = False
) -> None:
    """Raise :class:`AllocationError` unless ``counts`` fit ``free_nbytes``, saying what would."""
    needed = reserved_nbytes(plans, counts, host=host)
    if needed <= free_nbytes:
        return
    wanted = {name: max(1, count) for name, count in counts.items()}
    largest = _solve(plans, wanted, free_nbytes, host) or dict.fromkeys(plans.names, 0)
    tokens = longest_sequence(plans, largest)
    blocks = ", ".join(f"{name}: {count}" for name, count in counts.items())
    raise AllocationError(
        f"{needed} bytes needed for blocks {{{blocks}}}, but {free_nbytes} bytes are there in {where}; the longest "
        f"sequence that fits has {tokens} tokens (blocks {largest}). Ask for fewer blocks or give more memory",
        needed_nbytes=needed,
        free_nbytes=free_nbytes,
        longest_sequence=tokens,
        fits=largest,
    )


def _budget(memory_nbytes: int, ratio: float, reserve_nbytes: int) -> int:
    if whole(memory_nbytes, "memory_nbytes") < 0:
        raise PlanError(f"memory_nbytes is {memory_nbytes}; expected zero or more")
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
        raise PlanError(f"ratio is {ratio!r}; expected a number above 0 and at most 1")
    if whole(reserve_nbytes, "reserve_nbytes") < 0:
        raise PlanError(f"reserve_nbytes is {reserve_nbytes}; expected zero or more")
    share = memory_nbytes if ratio == 1 else int(memory_nbytes * ratio)
    return max(0, share - reserve_nbytes)


def _demand(plans: CachePlanSet, context_length: int | None, in_flight_tokens: int) -> dict[str, int]:
    if whole(in_flight_tokens, "in_flight_tokens") < 0:
        raise PlanError(f"in_flight_tokens is {in_flight_tokens}; expected zero or more")
    if context_length is None:
        if len(plans) > 1:
            raise PlanError(
                f"groups {', '.join(plans.names)} share this memory by what one sequence needs of each; "
                "give context_length, the tokens of a typical sequence"
            )
        return dict.fromkeys(plans.names, 1)
    length = positive(context_length, "context_length")
    return {plan.name: request_blocks(plan, length, in_flight_tokens) for plan in plans}


def _solve(plans: CachePlanSet, demand: Mapping[str, int], budget: int, host: bool) -> dict[str, int] | None:
    """The most blocks in proportion to ``demand``, at least one each; None when that does not fit."""
    for plan in plans:
        if not plan.block_nbytes(host=host):
            raise PlanError(f"group {plan.name!r} has blocks of zero bytes; any number fits, so nothing is to size")
    most = max(demand.values())

    def scaled(share: int) -> dict[str, int]:
        return {name: max(1, blocks * share // most) for name, blocks in demand.items()}

    def fits(share: int) -> bool:
        return reserved_nbytes(plans, scaled(share), host=host) <= budget

    if not fits(0):
        return None
    low, high = 0, 1
    while fits(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    counts = scaled(low)
    _fill(plans, counts, demand, budget, host)
    return counts


def _fill(plans: CachePlanSet, counts: dict[str, int], demand: Mapping[str, int], budget: int, host: bool) -> None:
    """Spend what is left, the group with the least for its demand first; then not one more block fits."""
    for name in sorted(counts, key=lambda name: (counts[name] / demand[name], name)):
        rest = budget - reserved_nbytes(plans, counts, host=host) + plans[name].reserved_nbytes(counts[name], host=host)
        counts[name] = max(counts[name], _most(plans[name], rest, host))


def _most(plan: BlockCachePlan, budget: int, host: bool) -> int:
    """The most blocks of one plan whose buffers fit ``budget``."""
    per_block = plan.block_nbytes(host=host)
    alignment = plan.reserved_nbytes(1, host=host) - per_block
    return max(0, (budget - alignment) // per_block)
