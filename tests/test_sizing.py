from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import POLICY, Index, kv_plan, layer_spec, plan_set, plan_with
from strategies import plans

from cachecore import (
    AllocationError,
    BlockCacheGeometry,
    ByteBackend,
    DeviceSpec,
    PlanError,
    StateCacheRequest,
    plan_from_states,
    sizing,
)
from cachecore.layout_kinds import packed_layout

# One block of kv_plan(): 2 layers * (256 + 256) bytes = 1,024 bytes for 4 tokens.
FULL = kv_plan()
WINDOWED = kv_plan(group="sliding", window=8, tag="_sliding")
(SLOT,) = plan_from_states([StateCacheRequest(name="ssm", shape=(64,), dtype="float32")], POLICY)  # 256 bytes a slot


@pytest.mark.parametrize(
    ("memory", "more", "blocks"),
    [
        (10 * 1024, {}, 10),
        (10 * 1024 - 1, {}, 9),
        (10 * 1024, {"ratio": 0.5}, 5),
        (10 * 1024, {"reserve_nbytes": 1}, 9),
        (10 * 1024, {"ratio": 0.8, "reserve_nbytes": 1024}, 7),  # 8,192 - 1,024
        (Index(10 * 1024), {}, 10),
    ],
)
def test_one_group_takes_what_the_budget_holds(memory, more, blocks):
    assert sizing.fit(plan_set(FULL), memory_nbytes=memory, **more) == {"full": blocks}


def test_alignment_counts():
    specs = [layer_spec()]
    plan = plan_with(specs, packed_layout(specs, base_alignment=4096))

    # 512 bytes a block, and 4,096 once
    assert sizing.fit(plan_set(plan), memory_nbytes=4096 + 5 * 512) == {"full": 5}
    assert sizing.reserved_nbytes(plan_set(plan), {"full": 5}) == 4096 + 5 * 512


def test_the_host_tier_has_its_own_size():
    # without padding: 2 layers * 2 * 128 bytes
    assert sizing.fit(plan_set(FULL), memory_nbytes=10 * 1024, host=True) == {"full": 20}


@pytest.mark.parametrize(
    ("tokens", "in_flight", "blocks"),
    [
        (1, 0, 1),
        (4, 0, 1),
        (5, 0, 2),
        (8, 0, 2),
        (1000, 0, 3),  # window 8: the last 7 tokens and the new one, anywhere in blocks of 4: ceil(8 / 4) + 1
        (1000, 1, 3),
        (1000, 6, 5),  # ceil((7 + 6) / 4) + 1
        (12, 6, 3),  # never more than the whole sequence
    ],
)
def test_a_window_bounds_what_a_sequence_holds(tokens, in_flight, blocks):
    assert sizing.request_units(WINDOWED, tokens, in_flight) == blocks


def test_full_attention_grows_and_a_state_is_one_slot():
    assert [sizing.request_units(FULL, tokens) for tokens in (1, 4, 5, 1000)] == [1, 1, 2, 250]
    assert sizing.request_units(SLOT, 1000) == 1


def test_groups_share_by_what_one_sequence_holds():
    counts = sizing.fit(plan_set(FULL, WINDOWED, SLOT), memory_nbytes=2 * (10 + 3) * 1024 + 2 * 256, context_length=40)

    # a sequence of 40 tokens: 10 full blocks, 3 of the window, one slot; the memory holds two
    assert counts == {"full": 20, "sliding": 6, "state": 2}


def test_several_groups_need_a_context_length():
    with pytest.raises(PlanError, match=r"groups full, sliding share this memory .*; give context_length"):
        sizing.fit(plan_set(FULL, WINDOWED), memory_nbytes=1 << 20)


def test_solve_says_what_the_counts_mean():
    answer = sizing.solve(plan_set(FULL, SLOT), memory_nbytes=11 * 1024 + 600, context_length=16, concurrency=2)

    # one sequence of 16 tokens: 4 blocks and 1 slot, 4,352 bytes; two take 8,704 of 11,864 bytes. The shares are
    # 10 blocks and 10 * 1 // 4 = 2 slots, 10,752 bytes; one more block makes 11,776, and 88 bytes are left.
    assert answer.counts == {"full": 11, "state": 2}
    assert answer.needed_nbytes == 11 * 1024 + 2 * 256
    assert answer.budget_nbytes == 11 * 1024 + 600
    assert answer.padding_nbytes == 11 * 512  # half of every K/V page is padding; a slot has none
    assert answer.longest_sequence == 44
    assert (answer.context_length, answer.num_requests) == (16, 2)


def test_solve_without_a_length_counts_no_requests():
    answer = sizing.solve(plan_set(FULL), memory_nbytes=4096)

    assert (answer.context_length, answer.num_requests) == (None, None)


@pytest.mark.parametrize(
    ("counts", "in_flight", "longest"),
    [
        ({"full": 3, "sliding": 3}, 0, 12),
        ({"full": 3, "sliding": 2}, 0, 8),  # too few for the window to roll: 2 * 4 tokens
        ({"full": 3, "sliding": 3}, 6, 12),
        ({"full": 30, "sliding": 3}, 6, 12),  # with 6 in flight the window needs 5 blocks
        ({"full": 0, "sliding": 3}, 0, 0),
    ],
)
def test_the_longest_sequence_is_the_scarcest_groups(counts, in_flight, longest):
    assert sizing.longest_sequence(plan_set(FULL, WINDOWED), counts, in_flight) == longest


def test_windows_and_states_alone_bound_no_length():
    assert sizing.longest_sequence(plan_set(WINDOWED, SLOT), {"sliding": 3, "state": 1}) == sizing.UNBOUNDED
    assert sizing.longest_sequence(plan_set(WINDOWED, SLOT), {"sliding": 3, "state": 0}) == 0


@pytest.mark.parametrize("host", [False, True])
def test_memory_for_no_block_is_refused_with_the_remedy(host):
    needed = 512 if host else 1024

    with pytest.raises(
        AllocationError, match=rf"{needed:,} B.? needed for full: 1, but {needed - 1} B are there "
    ) as e:
        sizing.fit(plan_set(FULL), memory_nbytes=needed - 1, host=host)

    assert (e.value.needed_nbytes, e.value.free_nbytes) == (needed, needed - 1)
    assert (e.value.longest_sequence, e.value.fits) == (0, {"full": 0})
    assert "has 0 tokens" in str(e.value)
    assert "Ask for less or give more memory" in str(e.value)


def test_explicit_counts_are_checked_against_memory():
    # W35
    assert sizing.fit(plan_set(FULL), memory_nbytes=4096, num_blocks=4) == {"full": 4}
    with pytest.raises(
        AllocationError, match=r"5 KiB \(5,120 B\) needed for full: 5, but 4 KiB \(4,096 B\) are"
    ) as caught:
        sizing.fit(plan_set(FULL), memory_nbytes=4096, num_blocks=5)

    assert caught.value.longest_sequence == 16  # 4 blocks of 4 tokens
    assert caught.value.fits == {"full": 4}


def test_explicit_counts_keep_their_proportion_in_the_remedy():
    with pytest.raises(AllocationError) as caught:
        sizing.fit(plan_set(FULL, WINDOWED), memory_nbytes=6 * 1024, num_blocks={"full": 8, "sliding": 4})

    assert caught.value.fits == {"full": 4, "sliding": 2}


def test_too_many_sequences_are_refused_with_the_length_that_fits():
    with pytest.raises(
        AllocationError, match=r"3 sequences of 16 tokens need 12 KiB \(12,288 B\), but 8 KiB "
    ) as caught:
        sizing.fit(plan_set(FULL), memory_nbytes=8192, context_length=16, concurrency=3)

    # 8 blocks for 3 sequences: 2 each, 8 tokens
    assert caught.value.longest_sequence == 8
    assert (caught.value.needed_nbytes, caught.value.free_nbytes) == (12288, 8192)


def test_a_reserve_that_leaves_nothing_is_told():
    with pytest.raises(AllocationError, match=r"but 0 B are there in this budget \(the reserve is as large as the mem"):
        sizing.fit(plan_set(FULL), memory_nbytes=4096, reserve_nbytes=8192)


def test_concurrency_needs_a_length():
    with pytest.raises(PlanError, match=r"concurrency counts sequences of one length; give context_length too"):
        sizing.fit(plan_set(FULL), memory_nbytes=8192, concurrency=3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"memory_nbytes": -1}, "memory_nbytes is -1; expected zero or more"),
        ({"ratio": 0}, "ratio is 0; expected a number above 0 and at most 1"),
        ({"ratio": 1.1}, "ratio is 1.1"),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"ratio": "0.9"}, "ratio is '0.9'"),
        ({"ratio": True}, "ratio is True"),
        ({"reserve_nbytes": -1}, "reserve_nbytes is -1"),
        ({"context_length": 0}, "context_length is 0; expected a positive"),
        ({"context_length": -5}, "context_length is -5; expected a positive"),
        ({"in_flight_tokens": -1}, "in_flight_tokens is -1"),
        ({"context_length": 8, "concurrency": 0}, "concurrency is 0; expected a positive"),
        ({"num_blocks": -1}, "num_blocks.* is -1; expected zero or more"),
        ({"num_blocks": {"sliding": 1}}, "num_blocks names group 'sliding', but the plan has group 'full'"),
    ],
)
def test_input_that_makes_no_sense_is_refused(more, message):
    with pytest.raises(PlanError, match=message):
        sizing.fit(plan_set(FULL), **{"memory_nbytes": 8192, **more})


@pytest.mark.parametrize(
    "name", ["memory_nbytes", "reserve_nbytes", "context_length", "in_flight_tokens", "num_blocks"]
)
def test_input_of_a_wrong_type_is_a_type_error(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer, not 8.5"):
        sizing.fit(plan_set(FULL), **{"memory_nbytes": 8192, name: 8.5})


def test_one_number_counts_for_one_group_only():
    with pytest.raises(PlanError, match=r"counts is 4, but the plan has groups full, sliding; give one each"):
        sizing.counts_for(plan_set(FULL, WINDOWED), 4, "counts")
    assert sizing.counts_for(plan_set(FULL, WINDOWED), 0, "counts") == {"full": 0, "sliding": 0}


def test_counts_come_in_plan_order_as_plain_integers():
    counts = sizing.counts_for(plan_set(FULL, WINDOWED), {"sliding": Index(3), "full": 1}, "counts")

    assert list(counts.items()) == [("full", 1), ("sliding", 3)]
    assert type(counts["sliding"]) is int


def test_blocks_of_zero_bytes_are_not_sized():
    specs = [layer_spec(shape=(4, 1, 0))]
    plan = plan_set(plan_with(specs, packed_layout(specs)))

    with pytest.raises(PlanError, match=r"group 'full' has units of zero bytes"):
        sizing.fit(plan, memory_nbytes=8192)


def test_a_draft_model_shares_the_count_of_its_target():
    target, draft = plan_set(kv_plan(rows=4)), plan_set(kv_plan(rows=1, tag="_draft"))

    # 4 * 512 + 1 * 512 = 2,560 bytes a block in both
    assert sizing.fit([target, draft], memory_nbytes=2560 * 7 + 2559) == {"full": 7}
    assert sizing.reserved_nbytes([target, draft], {"full": 7}) == 2560 * 7


@pytest.mark.parametrize(
    "other",
    [
        kv_plan(geometry=BlockCacheGeometry(8, 4), tag="_draft"),
        plan_from_states([StateCacheRequest(name="s", shape=(4,), dtype="uint8", group="full")], POLICY)[0],
    ],
    ids=["block size", "kind"],
)
def test_groups_of_one_name_must_mean_the_same_unit(other):
    with pytest.raises(
        PlanError, match=r"group 'full' is a block group in one plan set and differs in another"
    ) as caught:
        sizing.fit([plan_set(FULL), plan_set(other)], memory_nbytes=8192)

    assert caught.value.group == "full"


@pytest.mark.parametrize("wrong", [None, [], [None], FULL])
def test_plans_of_a_wrong_type_are_a_type_error(wrong):
    with pytest.raises(TypeError, match=r"(plans must be a CachePlanSet|not iterable)"):
        sizing.fit(wrong, memory_nbytes=8192)


@given(plans(), st.integers(0, 5), st.booleans())
def test_sizing_equals_the_buffers_taken(plan, num_blocks, host):
    backend = ByteBackend()
    layout = plan.host_layout if host else plan.layout

    allocation = backend.allocate(layout, plan.num_entries(num_blocks, host=host), DeviceSpec("null"))

    expected = sizing.reserved_nbytes(plan_set(plan), {"full": num_blocks}, host=host)
    assert backend.taken_nbytes == sum(len(buffer) for buffer in allocation.buffers) == expected
    assert sum(len(pool.pool) for pool in allocation.pools) == plan.nbytes(num_blocks, host=host)


@given(plans().filter(lambda plan: plan.block_nbytes()), st.integers(0, 1 << 16))
def test_what_is_fitted_fits_and_one_more_does_not(plan, memory):
    smallest = plan.reserved_nbytes(1)

    counts = sizing.fit(plan_set(plan), memory_nbytes=smallest + memory)

    assert plan.reserved_nbytes(counts["full"]) <= smallest + memory < plan.reserved_nbytes(counts["full"] + 1)
    with pytest.raises(AllocationError):
        sizing.fit(plan_set(plan), memory_nbytes=smallest - 1)
