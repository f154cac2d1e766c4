"""Counts where some groups' are given: what fits, what is the most, and ranks that share one memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachecore.solving import GroupBytes, RankMemory, joined, rank_nbytes, solve_counts

NAMES = ("full", "sliding", "state")


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[RankMemory], dict[str, int], dict[str, int]]:
    """Ranks with some of up to three groups, what a sequence holds of each, and counts given for some."""
    names = NAMES[: draw(st.integers(1, 3))]
    costs = st.builds(GroupBytes, st.integers(1, 50), st.sampled_from([0, 0, 7]))
    held = [draw(st.sets(st.sampled_from(names), min_size=1)) for _ in range(draw(st.integers(1, 4)))]
    held[0] = set(names)
    ranks = [RankMemory({name: draw(costs) for name in sorted(mine)}, draw(st.integers(0, 3000))) for mine in held]
    demand = {name: draw(st.integers(1, 20)) for name in names}
    fixed = draw(st.sets(st.sampled_from(names)))
    counts = {name: draw(st.integers(0, 10)) for name in sorted(fixed)}
    return ranks, {name: units for name, units in demand.items() if name not in fixed}, counts


def fits(ranks, counts) -> bool:
    return all(rank_nbytes(rank, counts) <= rank.budget_nbytes for rank in ranks)


@given(problems())
def test_solved_counts_fit_and_one_more_of_any_group_does_not(problem):
    ranks, demand, fixed = problem

    counts = solve_counts(ranks, demand, fixed)

    if counts is None:
        assert not fits(ranks, {**dict.fromkeys(demand, 1), **fixed})
        return
    assert fits(ranks, counts)
    assert {name: counts[name] for name in fixed} == fixed
    for name in demand:
        assert counts[name] >= 1
        assert not fits(ranks, {**counts, name: counts[name] + 1})


@given(problems(), st.integers(0, 2000))
def test_more_memory_never_gives_fewer_sequences_nor_fewer_blocks_of_a_single_group(problem, more):
    ranks, demand, fixed = problem
    richer = [rank._replace(budget_nbytes=rank.budget_nbytes + more) for rank in ranks]

    before, after = solve_counts(ranks, demand, fixed), solve_counts(richer, demand, fixed)

    if before is None:
        return
    assert after is not None
    if demand:
        sequences = [min(counts[name] // units for name, units in demand.items()) for counts in (before, after)]
        assert sequences[0] <= sequences[1]
    if len(demand) == 1:
        assert before[next(iter(demand))] <= after[next(iter(demand))]


@given(problems())
def test_no_other_counts_hold_more_sequences(problem):
    ranks, demand, fixed = problem
    counts = solve_counts(ranks, demand, fixed)
    if counts is None or not demand:
        return

    sequences = min(counts[name] // units for name, units in demand.items())

    assert not fits(ranks, {**fixed, **{name: units * (sequences + 1) for name, units in demand.items()}})


@given(problems(), st.randoms(use_true_random=False))
def test_permuted_ranks_give_the_same_answer(problem, random):
    ranks, demand, fixed = problem
    shuffled = random.sample(ranks, len(ranks))
    reordered = dict(random.sample(sorted(demand.items()), len(demand)))

    assert solve_counts(shuffled, reordered, fixed) == solve_counts(ranks, demand, fixed)


@given(problems())
def test_joined_ranks_take_what_they_take_apart(problem):
    ranks, demand, fixed = problem
    counts = {**dict.fromkeys(demand, 3), **fixed}

    node = joined(ranks)

    assert rank_nbytes(node, counts) == sum(rank_nbytes(rank, counts) for rank in ranks)
    assert node.budget_nbytes == min(rank.budget_nbytes for rank in ranks)


def test_given_counts_are_kept_and_the_rest_is_solved():
    rank = RankMemory({"full": GroupBytes(10), "state": GroupBytes(50)}, 1000)

    # 4 slots take 200 bytes; 80 blocks take the other 800
    assert solve_counts([rank], {"full": 1}, {"state": 4}) == {"state": 4, "full": 80}
    assert solve_counts([rank], {}, {"full": 10, "state": 4}) == {"full": 10, "state": 4}
    assert solve_counts([rank], {}, {"full": 81, "state": 4}) is None


def test_maximality_and_more_units_of_every_group_cannot_both_hold():
    """Units of 1 and 100 bytes: the small group takes each byte until the last one buys a large unit instead."""
    rank = RankMemory({"small": GroupBytes(1), "large": GroupBytes(100)}, 0)

    before, after = (solve_counts([rank._replace(budget_nbytes=n)], {"small": 1, "large": 1}) for n in (200, 201))

    assert (before, after) == ({"small": 100, "large": 1}, {"small": 1, "large": 2})
