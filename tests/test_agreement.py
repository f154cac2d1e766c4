"""All ranks find the same counts, or all fail alike."""

from __future__ import annotations

import json
from dataclasses import asdict

from agreeing import BLOCK, SLOT, agreed, stage
from hypothesis import given
from hypothesis import strategies as st
from samples import PAGE_4, POLICY

from cachecore import (
    AllocationError,
    ByteBackend,
    CacheEngine,
    GroupSpec,
    KvCacheConfig,
    PlanError,
    build_block_cache_plan,
    sizing,
)
from cachecore.agreement import Agreement, solve_reports
from cachecore.reference import BYTE_COPY
from cachecore.report import rank_report


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
    ranks = [({"target": windowed(1, window=8)}, 30 * BLOCK), ({"target": target, "draft": draft}, 30 * BLOCK)]

    for ordered in (ranks, ranks[::-1]):
        answer = agreed(*ordered, context_length=20)[0]

        # 15 blocks of both models on one rank; a sequence of 20 tokens holds 5 of them, not the 3 of the window
        assert (answer.counts, answer.num_requests, answer.longest_sequence) == ({"full": 15}, 3, 60)


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
