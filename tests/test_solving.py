from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import PlanError
from cachecore.solving import GroupBytes, RankMemory, rank_nbytes, solve_counts


@pytest.mark.parametrize(("count", "nbytes"), [(0, 0), (1, 110), (3, 310)])
def test_a_group_costs_its_fixed_bytes_once_it_has_units(count, nbytes):
    assert GroupBytes(unit_nbytes=100, fixed_nbytes=10).nbytes(count) == nbytes


def test_a_rank_costs_the_sum_of_its_groups():
    rank = RankMemory({"full": GroupBytes(100, 10), "state": GroupBytes(7)}, 0)

    # 10 + 2 * 100, and 3 * 7
    assert rank_nbytes(rank, {"full": 2, "state": 3, "elsewhere": 9}) == 231


@pytest.mark.parametrize(
    ("budget", "counts"),
    [
        (999, {"full": 9}),
        (1000, {"full": 10}),
        (100, {"full": 1}),
        (99, None),
    ],
)
def test_one_group_takes_what_fits(budget, counts):
    assert solve_counts([RankMemory({"full": GroupBytes(100)}, budget)], {"full": 1}) == counts


def test_fixed_bytes_are_taken_off_first():
    assert solve_counts([RankMemory({"full": GroupBytes(100, 50)}, 1000)], {"full": 1}) == {"full": 9}


def test_groups_share_in_proportion_to_demand():
    rank = RankMemory({"full": GroupBytes(100), "sliding": GroupBytes(100)}, 1200)

    # one sequence holds 4 + 2 blocks of 100 bytes: two sequences fill 1,200 bytes
    assert solve_counts([rank], {"full": 4, "sliding": 2}) == {"full": 8, "sliding": 4}


def test_what_proportion_leaves_goes_to_the_group_with_the_least_for_its_demand():
    rank = RankMemory({"full": GroupBytes(100), "state": GroupBytes(10)}, 350)

    # 3 : 3 takes 330 bytes; the remaining 20 are two slots
    assert solve_counts([rank], {"full": 1, "state": 1}) == {"full": 3, "state": 5}


def test_every_group_gets_at_least_one():
    rank = RankMemory({"full": GroupBytes(1), "state": GroupBytes(100)}, 150)

    assert solve_counts([rank], {"full": 1000, "state": 1}) == {"full": 50, "state": 1}


def test_the_smallest_rank_decides():
    # two pipeline stages with other layers
    ranks = [RankMemory({"full": GroupBytes(17)}, 1000), RankMemory({"full": GroupBytes(15)}, 1000)]

    # 1000 // 17 = 58, 1000 // 15 = 66
    assert solve_counts(ranks, {"full": 1}) == {"full": 58}


def test_a_rank_without_layers_of_a_group_does_not_bound_it():
    ranks = [RankMemory({"full": GroupBytes(10)}, 100), RankMemory({"state": GroupBytes(10)}, 30)]

    assert solve_counts(ranks, {"full": 1, "state": 1}) == {"full": 10, "state": 3}


def test_a_demand_of_nothing_is_refused():
    with pytest.raises(PlanError, match=r"group 'full': a sequence needs 0 units; expected at least one"):
        solve_counts([RankMemory({"full": GroupBytes(10)}, 100)], {"full": 0})


def test_units_of_zero_bytes_are_refused():
    with pytest.raises(PlanError, match=r"group 'full' has units of zero bytes on every rank; any number fits"):
        solve_counts([RankMemory({"full": GroupBytes(0)}, 100)], {"full": 1})


costs = st.builds(GroupBytes, st.integers(1, 1 << 20), st.integers(0, 1 << 22))
NAMES = ("full", "sliding", "state")


@st.composite
def cases(draw):
    """One to three ranks, one to three groups, each on at least one rank."""
    names = NAMES[: draw(st.integers(1, 3))]
    demand = {name: draw(st.integers(1, 500)) for name in names}
    ranks = [
        RankMemory(
            {name: draw(costs) for name in names if number == 0 or draw(st.booleans())}, draw(st.integers(0, 1 << 30))
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return ranks, demand


def fit(ranks, counts):
    return all(rank_nbytes(rank, counts) <= rank.budget_nbytes for rank in ranks)


@given(cases())
def test_the_counts_fit_and_not_one_more_does(case):
    ranks, demand = case

    counts = solve_counts(ranks, demand)

    if counts is None:
        assert not fit(ranks, dict.fromkeys(demand, 1))
        return
    assert fit(ranks, counts)
    assert all(count >= 1 for count in counts.values())
    assert not any(fit(ranks, {**counts, name: counts[name] + 1}) for name in counts)


@given(cases(), st.integers(0, 1 << 28))
def test_more_memory_never_serves_fewer_sequences(case, more):
    ranks, demand = case
    richer = [rank._replace(budget_nbytes=rank.budget_nbytes + more) for rank in ranks]

    counts, more_counts = solve_counts(ranks, demand), solve_counts(richer, demand)

    if counts is not None:
        assert min(more_counts[name] // demand[name] for name in demand) >= min(
            counts[name] // demand[name] for name in demand
        )


@given(cases(), st.randoms(use_true_random=False))
def test_permuted_ranks_give_the_same_counts(case, random):
    ranks, demand = case
    permuted = list(ranks)
    random.shuffle(permuted)

    assert solve_counts(permuted, demand) == solve_counts(ranks, demand)
