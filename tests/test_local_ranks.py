"""Ranks that are threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachecore import AgreementError, PlanError
from cachecore.local_ranks import local_ranks


def together(ranks, step):
    """Run ``step(rank)`` in a thread a rank; what each returned or raised."""

    def tried(rank):
        try:
            return step(rank)
        except AgreementError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(tried, ranks))


def test_every_rank_gets_every_text_in_rank_order_round_after_round():
    ranks = local_ranks(3)

    def rounds(rank):
        return [list(rank.all_gather(f"{number}:{rank.rank}", 10)) for number in range(50)]

    assert together(ranks, rounds) == [[[f"{number}:{rank}" for rank in range(3)] for number in range(50)]] * 3


@pytest.mark.parametrize("good_rounds", [0, 2])
def test_a_rank_that_does_not_come_is_named_on_all_others_within_the_limit(good_rounds):
    ranks = local_ranks(3)

    def step(rank):
        for _ in range(good_rounds):
            rank.all_gather("here", 10)
        if rank.rank == 1:
            return "gone"
        return rank.all_gather("still here", 0.1)

    started = time.monotonic()
    first, gone, last = together(ranks, step)

    assert time.monotonic() - started < 5
    assert gone == "gone"
    for error in (first, last):
        assert isinstance(error, AgreementError)
        assert str(error) == "rank 1 did not come within 0.1 s; see its own log for why"
        assert error.missing == [1]


def test_a_late_rank_fails_too_and_does_not_wait():
    ranks = local_ranks(2)

    def step(rank):
        if rank.rank:
            time.sleep(0.3)
        return rank.all_gather("here", 0.1)

    assert [type(answer) for answer in together(ranks, step)] == [AgreementError] * 2


def test_no_ranks_are_refused():
    with pytest.raises(PlanError, match="world_size is 0"):
        local_ranks(0)


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ((b"text", 1), TypeError, "text must be a string"),
        (("text", None), TypeError, "timeout_s must be a number of seconds, not None"),
        (("text", float("inf")), PlanError, "timeout_s is inf; expected a number of seconds above 0"),
        (("text", -1), PlanError, "timeout_s is -1"),
    ],
)
def test_what_is_no_text_or_no_limit_is_refused(arguments, kind, told):
    (rank,) = local_ranks(1)

    with pytest.raises(kind, match=told):
        rank.all_gather(*arguments)
