"""What sizing refuses: a length of which nothing fits, wrong types and wrong names, with the remedy computed."""

from __future__ import annotations

import pytest
from samples import POLICY, kv_plan, plan_set

from cachecore import (
    AllocationError,
    CachePlanSet,
    PlanError,
    StateCacheRequest,
    plan_from_states,
    sizing,
)


def states(*, layers: tuple[int, ...] = (0,), name: str = "ssm") -> CachePlanSet:
    request = StateCacheRequest(name=name, shape=(64,), dtype="float32", layers=layers)
    return CachePlanSet(plan_from_states([request], POLICY), "null", "bytes")


def test_a_length_of_which_not_one_sequence_fits_is_refused():
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    # 40 tokens hold 10 blocks and a slot: 10,496 bytes; 9 blocks and a slot would be 9,472
    with pytest.raises(
        AllocationError,
        match=r"1 sequence of 40 tokens needs 10.25 KiB \(10,496 B\), but .* \(10,495 B\) are there in this budget",
    ) as caught:
        sizing.fit(plans, memory_nbytes=10_495, context_length=40)

    refusal = caught.value
    assert (refusal.needed_nbytes, refusal.free_nbytes, refusal.longest_sequence) == (10_496, 10_495, 36)
    assert sizing.fit(plans, memory_nbytes=10_495, context_length=36) == {"full": 9, "state": 4}
    assert sizing.solve(plans, memory_nbytes=10_496, context_length=40).num_requests == 1


def test_counts_given_that_hold_not_one_sequence_are_refused():
    with pytest.raises(
        AllocationError, match=r"1 sequence of 40 tokens takes .*given are full: 9; the longest .* has 36 tokens"
    ):
        sizing.fit(plan_set(kv_plan()), memory_nbytes=1 << 20, num_blocks=9, context_length=40)


def test_a_host_tier_need_not_hold_a_whole_sequence_unless_asked():
    """Part of the sequences is swapped, and seldom are they of the longest length."""
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    # on the host a block is 512 bytes, a slot 256: 4 blocks are not the 10 of a sequence
    answer = sizing.solve(plans, memory_nbytes=2304, context_length=40, host=True)

    assert (answer.counts, answer.num_requests, answer.longest_sequence) == ({"full": 4, "state": 1}, 0, 16)
    with pytest.raises(AllocationError) as caught:
        sizing.fit(plans, memory_nbytes=2304, context_length=40, host=True, concurrency=1)
    assert (caught.value.needed_nbytes, caught.value.longest_sequence) == (5376, 16)
    with pytest.raises(AllocationError, match=r"768 B needed for full: 1, state: 1, but 767 B"):
        sizing.fit(plans, memory_nbytes=767, context_length=40, host=True)


WRONG_CALLS = {
    "plans of fit": lambda plans: sizing.fit("plans", memory_nbytes=1),
    "plan of request_units": lambda plans: sizing.request_units(plans, 4),
    "tokens of request_units": lambda plans: sizing.request_units(plans["full"], 4.5),
    "length of request_demand": lambda plans: sizing.request_demand(plans, None),
    "counts of reserved_nbytes": lambda plans: sizing.reserved_nbytes(plans, None),
    "a list of counts": lambda plans: sizing.reserved_nbytes(plans, [1, 2]),
    "counts of longest_sequence": lambda plans: sizing.longest_sequence(plans, "full"),
    "counts of check_fit": lambda plans: sizing.check_fit(plans, {"full": 1.5, "state": 1}, 1, "here"),
    "memory of check_fit": lambda plans: sizing.check_fit(plans, {"full": 1, "state": 1}, None, "here"),
    "counts_for None": lambda plans: sizing.counts_for(plans, None, "counts"),
}


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_a_wrong_type_is_told_by_name(call):
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    with pytest.raises(TypeError, match=r"(plans?|num_tokens|context_length|counts.*|free_nbytes) must be"):
        call(plans)


@pytest.mark.parametrize("counts", [{"full": 1}, {"full": 1, "state": 1, "other": 1}, {}, 3])
def test_counts_of_all_groups_and_no_others_are_expected(counts):
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    for use in (
        lambda: sizing.reserved_nbytes(plans, counts),
        lambda: sizing.longest_sequence(plans, counts),
        lambda: sizing.check_fit(plans, counts, 1 << 20, "here"),
    ):
        with pytest.raises(PlanError, match="but the plan has"):
            use()
