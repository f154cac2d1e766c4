"""The host tier: ranks of a node share its memory."""

from __future__ import annotations

from agreeing import HOST_BLOCK, agreed, stage

from cachecore import (
    AllocationError,
)


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
