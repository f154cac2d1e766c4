"""All ranks find the same counts, or all fail alike."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import PAGE_4, POLICY

from cachecore import (
    AgreementError,
    AllocationError,
    ByteBackend,
    CacheCoreError,
    CacheEngine,
    CachePlanSet,
    GroupSpec,
    KvCacheConfig,
    PlanError,
    StateCacheRequest,
    agree,
    build_block_cache_plan,
    sizing,
)
from cachecore.agreement import Agreement, confirm, solve_reports
from cachecore.local_ranks import local_ranks
from cachecore.reference import BYTE_COPY
from cachecore.report import rank_report

BLOCK, HOST_BLOCK, SLOT = 512, 256, 256
"""Bytes a layer: K and V of 4 tokens, 2 heads, 8 dims in float16 are 128, aligned to 256 each on the device."""


def stage(*layers: int, states: tuple[int, ...] = (), head_dim: int = 8) -> CachePlanSet:
    """The layers of one pipeline stage, some with a recurrent state of 256 bytes."""
    ssm = StateCacheRequest(name="ssm", shape=(64,), dtype="float32", layers=states or (0,))
    return build_block_cache_plan(
        kv=[KvCacheConfig(layers=layers, dtype="float16", num_kv_heads=2, head_dim=head_dim)] if layers else [],
        states=[ssm] if states else [],
        geometry=PAGE_4,
        device="null",
        policy=POLICY,
    )


def together(step, *arguments, timeout_s=10.0):
    """``step(communicator, argument)`` in a thread a rank; what each returned or raised."""
    ranks = local_ranks(len(arguments))

    def tried(rank):
        try:
            return step(rank, arguments[rank.rank])
        except (CacheCoreError, TypeError) as error:
            return error

    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(tried, ranks))


def agreed(*ranks, **shared):
    """``agree`` on ranks given as ``(plans, memory)`` or ``(plans, memory, more)``."""

    def step(communicator, one):
        plans, memory, *more = one
        return agree(communicator, plans, memory_nbytes=memory, timeout_s=10, **shared, **(more[0] if more else {}))

    return together(step, *ranks)


def test_stages_with_different_layers_agree_on_the_smallest():
    answers = agreed((stage(0, 1, 2), 30 * BLOCK), (stage(3), 8 * BLOCK + 100))

    # three layers: 30 // 3 = 10 blocks; one layer: 8 blocks, and 100 bytes are left
    assert [answer.counts for answer in answers] == [{"full": 8}] * 2
    assert answers[0].spare_nbytes == answers[1].spare_nbytes == (6 * BLOCK, 100)


def test_a_stage_opens_with_the_counts_of_its_own_groups():
    stages = stage(0), stage(1, states=(2, 3))
    answers = agreed(*((one, 4096) for one in stages), context_length=4)

    # a block is 512 bytes and a slot 512: four of each fill the second stage
    assert answers[0].counts == {"full": 4, "state": 4}
    assert [answers[0].counts_of(one) for one in stages] == [{"full": 4}, {"full": 4, "state": 4}]
    for one in stages:
        with CacheEngine(
            one, answers[0].counts_of(one), backend=ByteBackend(capacity_nbytes=4096), copies=[BYTE_COPY]
        ) as engine:
            assert engine.stats().groups[0].num_blocks == 4


def test_a_draft_on_the_last_stage_costs_that_rank_alone():
    target, draft = stage(0), stage(9)

    answers = agreed(({"target": target}, 10 * BLOCK), ({"target": target, "draft": draft}, 10 * BLOCK))

    assert answers[0].counts == {"full": 5}
    assert answers[0].spare_nbytes == (5 * BLOCK, 0)


def test_state_bytes_are_those_of_each_rank():
    """W33: a stage with one state layer and one with three take different bytes for a slot."""
    answers = agreed((stage(states=(0,)), 24 * SLOT), (stage(states=(1, 2, 3)), 24 * SLOT))

    assert answers[0].counts == {"state": 8}
    assert answers[0].spare_nbytes == (16 * SLOT, 0)


def test_given_counts_are_checked_on_every_rank():
    """W35, over ranks."""
    ranks = (stage(0), 30 * BLOCK), (stage(1, 2, 3), 30 * BLOCK)

    assert agreed(*ranks, num_blocks=10)[0].counts == {"full": 10}
    for error in agreed(*ranks, num_blocks=11):
        assert isinstance(error, AllocationError)
        assert (error.where, error.needed_nbytes, error.free_nbytes) == ("rank 1", 33 * BLOCK, 30 * BLOCK)


def test_a_group_that_no_rank_has_is_refused():
    for error in agreed((stage(0), 4096), (stage(1), 4096), num_blocks={"state": 2}):
        assert isinstance(error, PlanError)
        assert "a count is given for group 'state', but the groups are full" in str(error)


def test_given_slots_leave_the_rest_to_the_blocks_on_all_ranks():
    answers = agreed((stage(0), 10 * BLOCK), (stage(1, states=(2,)), 10 * BLOCK), num_blocks={"state": 6})

    # 6 slots of 256 bytes are three blocks' worth
    assert answers[0].counts == {"full": 7, "state": 6}


def test_groups_of_different_ranks_need_a_length_too():
    for error in agreed((stage(0), 4096), (stage(states=(1,)), 4096)):
        assert isinstance(error, PlanError)
        assert "context_length" in str(error)


def test_concurrency_that_one_rank_cannot_hold_is_refused_with_the_length_that_all_can():
    ranks = (stage(0), 100 * BLOCK), (stage(1), 12 * BLOCK)

    # 3 sequences of 4 blocks fill the second rank
    assert agreed(*ranks, context_length=16, concurrency=3)[0].num_requests == 3
    for error in agreed(*ranks, context_length=17, concurrency=3):
        assert isinstance(error, AllocationError)
        assert (error.num_requests, error.longest_sequence) == (2, 16)


def test_the_smallest_rank_without_room_for_one_unit_is_named_on_all():
    for error in agreed((stage(0), 100 * BLOCK), (stage(1, 2), 2 * BLOCK - 1)):
        assert isinstance(error, AllocationError)
        assert (error.where, error.needed_nbytes, error.free_nbytes, error.longest_sequence) == (
            "rank 1",
            2 * BLOCK,
            2 * BLOCK - 1,
            0,
        )


def test_an_answer_says_what_it_holds_and_what_is_lost_to_padding_on_every_rank():
    answers = agreed((stage(0, 1, 2), 30 * BLOCK), (stage(3, states=(4,)), 9 * BLOCK), context_length=12)

    # three blocks and a slot a sequence: 5 * 512 + 1 * 256 bytes; the second rank holds 8 blocks and 2 slots
    assert answers[0].counts == {"full": 8, "state": 2}
    assert (answers[0].num_requests, answers[0].longest_sequence) == (2, 32)
    # K and V of 128 bytes are aligned to 256: half of every block; a slot of 256 bytes has none
    assert answers[0].padding_nbytes == (3 * 8 * 256, 8 * 256)
    assert answers == [answers[0]] * 2


def test_an_answer_that_travelled_as_text_is_the_same():
    answer = agreed((stage(0), 30 * BLOCK, {"host_memory_nbytes": 4096}))[0]

    assert Agreement(**json.loads(json.dumps(asdict(answer)))) == answer


def test_a_length_of_which_not_one_sequence_fits_a_rank_is_refused_on_all():
    for error in agreed((stage(0), 100 * BLOCK), (stage(1), 9 * BLOCK), context_length=40):
        assert isinstance(error, AllocationError)
        assert (error.where, error.needed_nbytes, error.free_nbytes) == ("rank 1", 10 * BLOCK, 9 * BLOCK)
        assert (error.longest_sequence, error.num_requests) == (36, 0)


def test_a_draft_with_full_attention_on_one_rank_keeps_what_the_window_lets_go_on_all():
    def windowed(*layers, window=None):
        kv = KvCacheConfig(layers=layers, dtype="float16", num_kv_heads=2, head_dim=8)
        groups = [GroupSpec("full", PAGE_4, window)]
        return build_block_cache_plan(kv=[kv], groups=groups, geometry=PAGE_4, device="null", policy=POLICY)

    target, draft = windowed(0, window=8), windowed(0)

    answers = agreed(
        ({"target": windowed(1, window=8)}, 30 * BLOCK),
        ({"target": target, "draft": draft}, 30 * BLOCK),
        context_length=20,
    )

    # 15 blocks of both models on the second rank; a sequence of 20 tokens holds 5 of them, not the 3 of the window
    assert (answers[0].counts, answers[0].num_requests, answers[0].longest_sequence) == ({"full": 15}, 3, 60)


# -- host tier ---------------------------------------------------------------------------------


def test_ranks_of_a_node_share_its_host_memory():
    """W36: each of two ranks may not take all of it."""
    ranks = [
        (stage(0), 1 << 20, {"node": "a"}),
        (stage(1), 1 << 20, {"node": "a"}),
        (stage(2), 1 << 20, {"node": "b"}),
    ]

    (answer, *others) = agreed(*ranks, host_memory_nbytes=20 * HOST_BLOCK)

    assert others == [answer, answer]
    assert answer.host_counts == {"full": 10}
    assert answer.host_spare_nbytes == {"a": 0, "b": 10 * HOST_BLOCK}
    assert answer.counts_of(stage(0), host=True) == {"full": 10}


def test_given_host_counts_are_checked_against_the_node():
    ranks = [(stage(0), 1 << 20, {"node": "a"}), (stage(1), 1 << 20, {"node": "a"})]

    assert agreed(*ranks, host_memory_nbytes=20 * HOST_BLOCK, host_num_blocks=10)[0].host_counts == {"full": 10}
    for error in agreed(*ranks, host_memory_nbytes=20 * HOST_BLOCK, host_num_blocks=11):
        assert isinstance(error, AllocationError)
        assert error.where == "the host of node 'a'"
        assert (error.needed_nbytes, error.free_nbytes) == (22 * HOST_BLOCK, 20 * HOST_BLOCK)


def test_host_counts_that_do_not_fit_are_refused_with_the_length_that_does():
    ranks = [(stage(0), 1 << 20, {"node": "a"}), (stage(1), 1 << 20, {"node": "a"})]

    # 21 half blocks: ten of both ranks, 40 tokens
    for error in agreed(*ranks, host_memory_nbytes=21 * HOST_BLOCK, host_num_blocks=11):
        assert isinstance(error, AllocationError)
        assert (error.longest_sequence, error.fits) == (40, {"full": 10})
        assert "the longest sequence that fits alone has 40 tokens" in str(error)


def test_sequences_that_must_fit_the_host_tier_are_checked_over_the_ranks_of_a_node():
    ranks = [(stage(0), 1 << 20, {"node": "a"}), (stage(1), 1 << 20, {"node": "a"}), (stage(2), 1 << 20)]
    shared = {"context_length": 16, "host_memory_nbytes": 20 * HOST_BLOCK}

    # ten blocks on the node of two ranks: two sequences of four blocks
    answer = agreed(*ranks, **shared, host_concurrency=2)[0]
    assert (answer.host_counts, answer.host_num_requests, answer.host_longest_sequence) == ({"full": 10}, 2, 40)
    for error in agreed(*ranks, **shared, host_concurrency=3):
        assert isinstance(error, AllocationError)
        assert (error.where, error.num_requests, error.longest_sequence) == ("the host of node 'a'", 2, 12)
        assert (error.needed_nbytes, error.free_nbytes) == (24 * HOST_BLOCK, 20 * HOST_BLOCK)


def test_a_host_tier_without_room_for_a_whole_sequence_is_agreed_on_and_told():
    answer = agreed((stage(0), 1 << 20), context_length=100, host_memory_nbytes=10 * HOST_BLOCK)[0]

    assert (answer.host_counts, answer.host_num_requests, answer.host_longest_sequence) == ({"full": 10}, 0, 40)


def test_a_host_tier_that_is_switched_off_holds_nothing():
    answer = agreed((stage(0), 1 << 20), host_memory_nbytes=1 << 20, host_num_blocks=0)[0]

    assert (answer.host_counts, answer.host_longest_sequence) == ({"full": 0}, 0)
    assert list(answer.host_padding_nbytes.values()) == [0]


def test_without_host_memory_there_is_no_host_tier():
    answer = agreed((stage(0), 4096))[0]

    assert answer.host_counts is answer.host_padding_nbytes is answer.host_longest_sequence is None
    assert answer.counts_of(stage(0), host=True) == {"full": 0}


# -- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "kind"), [({"ratio": 2}, PlanError), ({"num_blocks": "many"}, TypeError), ({"model": 3}, TypeError)]
)
def test_an_input_that_one_rank_refuses_is_refused_on_all(wrong, kind):
    first, second, third = agreed((stage(0), 4096), (stage(1), 4096, wrong), (stage(2), 4096))

    assert type(second) is kind
    for error in (first, third):
        assert isinstance(error, AgreementError)
        assert str(error) == f"rank 1 cannot be sized: {kind.__name__}: {second}"


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0}, {"timeout_s": "soon"}, {"num_blocks": {3: 1}}, {"host_concurrency": 2}]
)
def test_a_limit_or_count_that_one_rank_refuses_is_refused_on_all_too(wrong):
    def step(communicator, more):
        return agree(communicator, stage(communicator.rank), **{"memory_nbytes": 4096, "timeout_s": 10, **more})

    first, second = together(step, {}, wrong)

    assert isinstance(first, AgreementError)
    assert str(first) == f"rank 1 cannot be sized: {type(second).__name__}: {second}"


def test_plans_that_cannot_be_read_are_told_to_all_ranks():
    first, second = agreed((stage(0), 4096), ("plans", 4096))

    assert "rank 1 cannot be sized: TypeError: plans must be a CachePlanSet" in str(first)
    assert isinstance(second, TypeError)


def test_what_is_no_communicator_is_told():
    for use in (lambda: agree(None, stage(0), memory_nbytes=1), lambda: confirm(None)):
        with pytest.raises(TypeError, match=r"communicator must have rank, world_size and all_gather\(\), not be None"):
            use()


def test_what_is_no_error_is_not_confirmed():
    (rank,) = local_ranks(1)

    with pytest.raises(TypeError, match="error must be the exception that opening raised"):
        confirm(rank, "it failed")


@pytest.mark.parametrize(("reports", "told"), [("reports", "reports must be a sequence"), ([3], "report 0 must be")])
def test_what_are_no_reports_is_told(reports, told):
    with pytest.raises(TypeError, match=told):
        solve_reports(reports, 1)


def test_no_reports_are_refused():
    with pytest.raises(PlanError, match="no reports given"):
        solve_reports([], 0)


def test_a_rank_of_another_model_is_told_on_all():
    answers = agreed((stage(0), 4096), (stage(0, head_dim=16), 4096), (stage(0), 4096))

    assert {str(answer) for answer in answers} == {
        "ranks 0 and 1 disagree on layer 0 of cache 'k_cache'; they were built from different models or geometries"
    }


def test_a_rank_that_never_comes_fails_all_others_in_time():
    def step(communicator, plans):
        if plans is None:
            return None
        return agree(communicator, plans, memory_nbytes=4096, timeout_s=0.2)

    started = time.monotonic()
    answers = together(step, stage(0), None, stage(1))

    assert time.monotonic() - started < 5
    assert [type(answer) for answer in answers] == [AgreementError, type(None), AgreementError]
    assert "rank 1 did not come within 0.2 s" in str(answers[0])


def test_a_report_is_expected_of_every_rank():
    with pytest.raises(AgreementError, match="1 ranks reported, but there are 2"):
        solve_reports([rank_report(stage(0), memory_nbytes=4096)], 2)


def test_all_ranks_hear_that_one_could_not_open():
    failed = AllocationError("no memory")

    answers = together(lambda communicator, error: confirm(communicator, error, timeout_s=10), None, failed, None)

    assert {str(answer) for answer in answers} == {"rank 1 could not open its engine: AllocationError: no memory"}
    assert answers[1].__cause__ is failed


def test_all_ranks_hear_that_all_are_open():
    assert together(lambda communicator, _: confirm(communicator, timeout_s=10), None, None) == [None, None]


# -- properties --------------------------------------------------------------------------------

STAGES = [stage(0), stage(1, 2), stage(3, states=(4,)), stage(5, 6, 7, states=(8, 9))]
LAYOUTS = st.lists(st.tuples(st.sampled_from(range(len(STAGES))), st.integers(0, 60_000)), min_size=1, max_size=4)


def solved(stages, length, order):
    reports = [
        json.loads(
            json.dumps(
                rank_report(
                    STAGES[number],
                    memory_nbytes=memory,
                    context_length=length,
                    host_memory_nbytes=memory,
                    node=str(number % 2),
                )
            )
        )
        for number, memory in (stages[index] for index in order)
    ]
    try:
        return solve_reports(reports, len(reports))
    except AllocationError as error:
        return error


@given(LAYOUTS, st.integers(1, 50), st.randoms(use_true_random=False))
def test_permuted_ranks_give_the_same_answer(stages, length, random):
    order = list(range(len(stages)))
    shuffled = random.sample(order, len(order))

    one, two = solved(stages, length, order), solved(stages, length, shuffled)

    if isinstance(one, AllocationError):
        assert isinstance(two, AllocationError)
        assert one.longest_sequence == two.longest_sequence
        return
    assert (one.counts, one.host_counts, one.num_requests) == (two.counts, two.host_counts, two.num_requests)
    assert [one.spare_nbytes[number] for number in shuffled] == list(two.spare_nbytes)
    assert one.host_spare_nbytes == two.host_spare_nbytes


@given(LAYOUTS, st.integers(1, 50))
def test_agreed_counts_fit_every_rank_and_the_memory_of_every_node(stages, length):
    answer = solved(stages, length, range(len(stages)))
    if isinstance(answer, AllocationError):
        return

    nodes = {}
    for (number, memory), spare in zip(stages, answer.spare_nbytes, strict=True):
        plans = STAGES[number]
        assert sizing.reserved_nbytes(plans, answer.counts_of(plans)) == memory - spare <= memory
        taken, least = nodes.get(number % 2, (0, memory))
        host = sizing.reserved_nbytes(plans, answer.counts_of(plans, host=True), host=True)
        nodes[number % 2] = taken + host, min(least, memory)
    assert all(taken <= memory for taken, memory in nodes.values())
