"""Plan sets, counts and memory as given to sizing."""

from __future__ import annotations

import pytest
from samples import POLICY, Index, kv_plan, plan_set

from cachecore import BlockCacheGeometry, CachePlanSet, PlanError, StateCacheRequest, plan_from_states
from cachecore.budget import (
    as_sets,
    budget_nbytes,
    given_counts,
    group_names,
    holding_of,
    holdings_of,
    named_sets,
    rank_memory,
    sequences,
)
from cachecore.holding import UNBOUNDED, Holding
from cachecore.solving import GroupBytes

TARGET = plan_set(kv_plan())
DRAFT = plan_set(kv_plan(rows=1))
STATE = plan_from_states([StateCacheRequest(name="ssm", shape=(64,), dtype="float32")], POLICY)
HYBRID = CachePlanSet((*TARGET, *STATE), "null", "bytes")


def test_plan_sets_are_named_by_position_or_by_their_model():
    assert named_sets(TARGET) == {"0": TARGET}
    assert named_sets([TARGET, DRAFT]) == {"0": TARGET, "1": DRAFT}
    assert named_sets({"target": TARGET, "draft": DRAFT}) == {"target": TARGET, "draft": DRAFT}
    assert as_sets({"target": TARGET}) == (TARGET,)


@pytest.mark.parametrize("plans", [(), {}, None, 5, [None], {"target": None}, "ab", iter([TARGET])])
def test_what_is_no_plan_set_is_a_type_error(plans):
    with pytest.raises(TypeError, match="plans must be"):
        named_sets(plans)


def test_groups_of_one_name_share_a_block_table():
    other_block = plan_set(kv_plan(geometry=BlockCacheGeometry(8, 4)))
    state = CachePlanSet(plan_from_states([_state(group="full")], POLICY), "null", "bytes")

    for other in (other_block, state):
        with pytest.raises(PlanError, match=r"group 'full'.*Rename"):
            as_sets([TARGET, other])


def _state(group: str) -> StateCacheRequest:
    return StateCacheRequest(name="ssm", shape=(64,), dtype="float32", group=group)


def test_group_names_are_those_of_all_sets_once():
    assert group_names([HYBRID, DRAFT]) == ("full", "state")


def test_given_counts_may_name_some_groups():
    assert given_counts(HYBRID, {"state": Index(3)}, "num_blocks") == {"state": 3}
    assert given_counts(HYBRID, None, "num_blocks") == {}
    assert given_counts(TARGET, 5, "num_blocks") == {"full": 5}
    assert given_counts(HYBRID, 0, "num_blocks") == {"full": 0, "state": 0}


@pytest.mark.parametrize(
    ("counts", "error", "told"),
    [
        (5, PlanError, "give one each"),
        ({"fulll": 5}, PlanError, "names group 'fulll'"),
        ({"full": -1}, PlanError, "num_blocks of group 'full' is -1"),
        ({"full": 1.5}, TypeError, "must be an integer"),
        ({"full": True}, TypeError, "must be an integer"),
        ({3: 5}, PlanError, "names group '3'"),
        ("full", TypeError, "num_blocks must be an integer, not 'full'"),
    ],
)
def test_given_counts_that_make_no_sense_are_refused(counts, error, told):
    with pytest.raises(error, match=told):
        given_counts(HYBRID, counts, "num_blocks")


def test_rank_memory_adds_what_models_take_of_a_group():
    # K and V of 128 bytes are aligned to 256 each: 512 bytes a layer; two layers and one draft layer
    assert rank_memory([TARGET, DRAFT], 99).groups == {"full": GroupBytes(3 * 512, 0, 3 * 256)}
    assert rank_memory(HYBRID, 99).groups["state"] == GroupBytes(256, 0, 256)
    assert rank_memory(TARGET, 99).budget_nbytes == 99


def test_rank_memory_counts_the_room_that_aligns_a_pool_once():
    plan = kv_plan()
    host = rank_memory(plan_set(plan), 0, host=True)

    assert host.groups["full"].nbytes(7) == plan.reserved_nbytes(7, host=True)


@pytest.mark.parametrize(
    ("arguments", "nbytes"), [((1000,), 1000), ((1000, 0.9), 900), ((1000, 0.5, 200), 300), ((1000, 1.0, 2000), 0)]
)
def test_budget_is_a_share_without_a_reserve(arguments, nbytes):
    assert budget_nbytes(*arguments) == nbytes


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((-1,), PlanError),
        ((1.5,), TypeError),
        ((1, 0), PlanError),
        ((1, 1.01), PlanError),
        ((1, "half"), PlanError),
        ((1, True), PlanError),
        ((1, 1.0, -1), PlanError),
    ],
)
def test_budgets_that_make_no_sense_are_refused(arguments, error):
    with pytest.raises(error):
        budget_nbytes(*arguments)


def test_what_a_sequence_holds_is_numbers():
    window = kv_plan(window=8)

    assert holding_of(kv_plan()) == Holding(4)
    # the last 7 tokens and those in flight, anywhere in blocks of 4
    assert [holding_of(window, tokens) for tokens in (0, 1, 6)] == [Holding(4, 3), Holding(4, 3), Holding(4, 5)]
    assert holding_of(STATE[0]) == Holding(UNBOUNDED, 1)
    assert holdings_of([plan_set(window), HYBRID]) == {"full": Holding(4), "state": Holding(UNBOUNDED, 1)}


@pytest.mark.parametrize(("plan", "tokens"), [(TARGET, 0), (None, 0), (TARGET.only(), "1"), (TARGET.only(), 1.5)])
def test_what_is_no_group_or_no_number_holds_nothing(plan, tokens):
    with pytest.raises(TypeError, match=r"plan must be the plan of a group|in_flight_tokens must be an integer"):
        holding_of(plan, tokens)


def test_one_sequence_must_fit_a_device_and_none_a_host_unless_more_are_asked_for():
    assert [sequences(8, None), sequences(8, 3), sequences(None, None)] == [(8, 1), (8, 3), (None, 0)]
    assert [sequences(8, None, host=True), sequences(8, 3, host=True)] == [(8, 0), (8, 3)]
    with pytest.raises(PlanError, match="several counts sequences of one length; give context_length too"):
        sequences(None, 3, what="several")
