"""Counts over all memories of a tier: what the answer says, and what a refusal computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import AllocationError, PlanError
from cachecore.holding import UNBOUNDED, Holding, units_held
from cachecore.solving import GroupBytes, RankMemory, rank_nbytes
from cachecore.tier import Wanted, check_tier, solve_tier

HOLDINGS = {"full": Holding(4), "state": Holding(UNBOUNDED, 1)}
FIRST = RankMemory({"full": GroupBytes(100, 7, 60), "state": GroupBytes(50, 0, 50)}, 1000)
SECOND = RankMemory({"full": GroupBytes(30, 0, 30)}, 500)
RANKS = {"rank 0": FIRST, "rank 1": SECOND}


def test_an_answer_says_what_every_memory_holds():
    answer = solve_tier(RANKS, HOLDINGS, Wanted(8, 1, {}))

    # two blocks a slot: 7 blocks and 3 slots take 7 + 700 + 150 bytes, 8 and 4 would take 1,007; two more slots fit
    assert answer.counts == {"full": 7, "state": 5}
    assert answer.spare_nbytes == (1000 - 957, 500 - 7 * 30)
    assert answer.padding_nbytes == (7 + 7 * 40, 0)
    assert (answer.longest_sequence, answer.num_requests) == (28, 3)


def test_a_refusal_names_the_memory_that_lacks_most():
    with pytest.raises(
        AllocationError, match=r"5 sequences of 16 tokens need 2.2 KiB \(2,257 B\), but 1000 B are there in rank 0"
    ) as caught:
        solve_tier(RANKS, HOLDINGS, Wanted(16, 5, {}))

    refusal = caught.value
    assert (refusal.where, refusal.needed_nbytes, refusal.free_nbytes) == ("rank 0", 7 + 20 * 100 + 5 * 50, 1000)
    # 5 slots leave 743 bytes for 7 blocks, one each
    assert (refusal.longest_sequence, refusal.num_requests) == (4, 2)


def test_a_refusal_counts_in_words_that_fit_the_number():
    with pytest.raises(AllocationError) as one:
        solve_tier({"rank 1": SECOND}, {"full": Holding(4)}, Wanted(100, 1, {}))
    with pytest.raises(AllocationError) as several:
        solve_tier(RANKS, HOLDINGS, Wanted(16, 5, {}))

    # 25 blocks of 30 bytes; 500 bytes hold 16 blocks of 4 tokens
    told = "1 sequence of 100 tokens needs 750 B, but 500 B are there in rank 1; "
    assert str(one.value).startswith(f"{told}the longest sequence that fits alone has 64 tokens. ")
    assert "; 2 fit at once, and 5 do up to 4 tokens each. " in str(several.value)


def test_a_length_without_a_number_of_sequences_is_a_proportion():
    answer = solve_tier(RANKS, HOLDINGS, Wanted(400, 0, {}))

    assert (answer.counts, answer.num_requests) == ({"full": 9, "state": 1}, 0)


def test_counts_are_checked_on_every_memory():
    check_tier(RANKS, HOLDINGS, {"full": 9, "state": 1})
    with pytest.raises(AllocationError, match=r"510 B needed for full: 17, state: 0, but 500 B are") as caught:
        check_tier({"rank 1": SECOND}, HOLDINGS, {"full": 17, "state": 0})

    assert (caught.value.fits, caught.value.longest_sequence) == ({"full": 16, "state": 0}, 64)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted(None, 0, {}), "groups full, state share this memory"),
        (Wanted(8, 1, {"ful": 3}), "a count is given for group 'ful', but the groups are full, state"),
    ],
)
def test_what_leaves_the_shares_open_or_names_no_group_is_refused(wanted, told):
    with pytest.raises(PlanError, match=told):
        solve_tier(RANKS, HOLDINGS, wanted)


COSTS = st.builds(GroupBytes, st.integers(1, 30), st.integers(0, 9))
MEMORY = st.builds(RankMemory, st.fixed_dictionaries({"full": COSTS, "state": COSTS}), st.integers(0, 2000))
MEMORIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), MEMORY, min_size=1)


@given(MEMORIES, st.integers(1, 60), st.integers(1, 5), st.dictionaries(st.just("state"), st.integers(0, 9)))
def test_what_is_wanted_is_met_or_refused_with_a_length_that_would_be(memories, length, concurrency, fixed):
    def meets(tokens):
        asked = {name: units * concurrency for name, units in units_held(HOLDINGS, tokens).items()}
        held = {**asked, **fixed}
        return all(fixed[name] >= asked[name] for name in fixed) and all(
            rank_nbytes(memory, held) <= memory.budget_nbytes for memory in memories.values()
        )

    wanted = Wanted(length, concurrency, fixed)
    if meets(length):
        assert solve_tier(memories, HOLDINGS, wanted).num_requests >= concurrency
        return
    with pytest.raises(AllocationError) as caught:
        solve_tier(memories, HOLDINGS, wanted)
    longest = caught.value.longest_sequence
    assert not longest or meets(longest)
    assert not meets(longest + 1)
