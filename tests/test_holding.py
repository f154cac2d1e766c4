"""What a sequence holds, from tokens to units and back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachecore.holding import UNBOUNDED, Holding, longest_fitting, longest_held, units_held
from cachecore.solving import GroupBytes, RankMemory, rank_nbytes

SLOT = Holding(UNBOUNDED, 1)
HOLDINGS = st.one_of(st.just(SLOT), st.builds(Holding, st.integers(1, 64), st.one_of(st.none(), st.integers(1, 9))))


def test_units_grow_with_the_sequence_up_to_what_a_window_keeps():
    assert [Holding(4).units(tokens) for tokens in (0, 1, 4, 5, 100)] == [0, 1, 1, 2, 25]
    assert [Holding(4, 3).units(tokens) for tokens in (1, 12, 13, UNBOUNDED)] == [1, 3, 3, 3]
    assert [SLOT.units(tokens) for tokens in (1, 1000, UNBOUNDED)] == [1, 1, 1]


def test_models_of_one_block_table_hold_what_either_needs():
    assert Holding(4, 3).joined(Holding(4, 5)) == Holding(4, 5)
    assert Holding(4, 3).joined(Holding(4)) == Holding(4).joined(Holding(4, 3)) == Holding(4)
    assert SLOT.joined(SLOT) == SLOT


@given(HOLDINGS, st.integers(0, 50))
def test_the_longest_sequence_of_some_units_holds_them_and_one_token_more_does_not(holding, units):
    longest = holding.longest(units)

    assert holding.units(longest) <= units
    assert longest == UNBOUNDED or holding.units(longest + 1) > units


def test_the_longest_sequence_is_that_of_the_scarcest_group():
    holdings = {"full": Holding(4), "sliding": Holding(4, 3), "state": SLOT}

    assert units_held(holdings, 40) == {"full": 10, "sliding": 3, "state": 1}
    assert longest_held(holdings, {"full": 10, "sliding": 3, "state": 1}) == 40
    assert longest_held(holdings, {"full": 10, "sliding": 2, "state": 1}) == 8
    assert longest_held(holdings, {"full": 10, "sliding": 3, "state": 0}) == 0
    assert longest_held({"sliding": Holding(4, 3), "state": SLOT}, {"sliding": 3, "state": 1}) == UNBOUNDED


@given(
    st.lists(st.tuples(HOLDINGS, st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=3),
    st.lists(st.integers(0, 5000), min_size=1, max_size=3),
    st.integers(1, 4),
)
def test_the_longest_fitting_length_fits_every_memory_and_one_token_more_does_not(groups, budgets, concurrency):
    names = [str(number) for number in range(len(groups))]
    holdings = {name: holding for name, (holding, _, _) in zip(names, groups, strict=True)}
    costs = {name: GroupBytes(unit, fixed) for name, (_, unit, fixed) in zip(names, groups, strict=True)}
    memories = [RankMemory(costs, budget) for budget in budgets]

    def fits(length):
        held = {name: units * concurrency for name, units in units_held(holdings, length).items()}
        return all(rank_nbytes(memory, held) <= memory.budget_nbytes for memory in memories)

    longest = longest_fitting(memories, holdings, concurrency=concurrency)

    assert fits(longest)
    assert longest == UNBOUNDED or not fits(longest + 1)


def test_counts_given_are_kept():
    memory = RankMemory({"full": GroupBytes(10), "state": GroupBytes(50)}, 200)
    holdings = {"full": Holding(4), "state": SLOT}

    # one slot leaves 15 blocks, three given slots leave 5; two sequences share them, 2 blocks each
    assert longest_fitting([memory], holdings) == 60
    assert longest_fitting([memory], holdings, given={"state": 3}) == 20
    assert longest_fitting([memory], holdings, given={"state": 3}, concurrency=2) == 8
    assert longest_fitting([memory], holdings, given={"state": 1}, concurrency=2) == 0
