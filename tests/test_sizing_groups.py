"""Sizing of several groups and models together: properties, given counts, and what earlier systems got wrong."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from samples import PAGE_4, POLICY, kv_plan, plan_set
from strategies import plans as block_plans

from cachecore import (
    AllocationError,
    BlockCacheGeometry,
    ByteBackend,
    CacheEngine,
    CachePlanSet,
    GroupSpec,
    KvCacheConfig,
    LayoutHints,
    PlanError,
    StateCacheRequest,
    build_block_cache_plan,
    plan_from_states,
    sizing,
)
from cachecore.reference import BYTE_COPY

BLOCK = 1024
"""Bytes of a block of ``kv_plan()``: K and V of 128 bytes, aligned to 256 each, in two layers."""

SLOT = 256
"""Bytes of a slot of ``states()``."""


def states(*, layers: tuple[int, ...] = (0,), name: str = "ssm") -> CachePlanSet:
    request = StateCacheRequest(name=name, shape=(64,), dtype="float32", layers=layers)
    return CachePlanSet(plan_from_states([request], POLICY), "null", "bytes")


def hybrid(*, window: int | None = 8) -> CachePlanSet:
    """Full attention, a window and a state: 1024 bytes a block of either, 256 a slot."""
    return CachePlanSet((kv_plan(), kv_plan(group="sliding", window=window, tag="_w"), *states()), "null", "bytes")


@st.composite
def plan_sets(draw: st.DrawFn) -> CachePlanSet:
    """One or two block groups of any layout, and perhaps states."""
    groups = [draw(block_plans(group="full"))]
    if draw(st.booleans()):
        groups.append(kv_plan(group="sliding", window=draw(st.integers(1, 40)), tag="_w"))
    if draw(st.booleans()):
        groups.extend(states().groups)
    plans = CachePlanSet(tuple(groups), "null", "bytes")
    assume(all(plan.unit_nbytes() for plan in plans))
    return plans


SIZES = st.integers(0, 60_000)
LENGTHS = st.integers(1, 200)


def tried(plans, memory, **more):
    try:
        return sizing.solve(plans, memory_nbytes=memory, **more)
    except AllocationError:
        return None


@given(plan_sets(), SIZES, LENGTHS)
def test_counts_fit_exactly_and_one_more_of_any_group_does_not(plans, memory, length):
    answer = tried(plans, memory, context_length=length)

    if answer is None:
        assert sizing.reserved_nbytes(plans, sizing.request_demand(plans, length)) > memory
        return
    taken = sum(plan.reserved_nbytes(answer.counts[plan.name]) for plan in plans)
    assert answer.needed_nbytes == taken <= memory
    for name in plans.names:
        more = {**answer.counts, name: answer.counts[name] + 1}
        assert sizing.reserved_nbytes(plans, more) > memory


@given(plan_sets(), SIZES, SIZES, LENGTHS)
def test_more_memory_never_gives_fewer_requests(plans, memory, more, length):
    before = tried(plans, memory, context_length=length)
    after = tried(plans, memory + more, context_length=length)

    assert before is None or before.num_requests <= after.num_requests


@given(plan_sets(), SIZES, LENGTHS, st.integers(1, 5))
def test_concurrency_is_met_or_refused_with_the_longest_length_that_would(plans, memory, length, concurrency):
    def meets(tokens):
        held = sizing.request_demand(plans, tokens)
        return sizing.reserved_nbytes(plans, {name: n * concurrency for name, n in held.items()}) <= memory

    try:
        answer = sizing.solve(plans, memory_nbytes=memory, context_length=length, concurrency=concurrency)
    except AllocationError as error:
        refusal = error
    else:
        assert answer.num_requests >= concurrency
        assert meets(length)
        return
    assert not meets(length)
    longest = refusal.longest_sequence
    assert longest < length
    assert not longest or meets(longest)
    assert not meets(longest + 1)
    held = sizing.request_demand(plans, length)
    assert refusal.num_requests < concurrency
    assert refusal.needed_nbytes == sizing.reserved_nbytes(plans, {name: n * concurrency for name, n in held.items()})


@given(plan_sets(), SIZES)
def test_a_refusal_names_the_longest_sequence_that_fits_alone(plans, memory):
    counts = dict.fromkeys(plans.names, 1000)
    assume(sizing.reserved_nbytes(plans, counts) > memory)

    with pytest.raises(AllocationError) as caught:
        sizing.check_fit(plans, counts, memory, "a test")

    refusal = caught.value
    assert (refusal.needed_nbytes, refusal.free_nbytes) == (sizing.reserved_nbytes(plans, counts), memory)
    assert sizing.reserved_nbytes(plans, refusal.fits) <= memory
    for tokens, does in ((refusal.longest_sequence, True), (refusal.longest_sequence + 1, False)):
        if 0 < tokens < sizing.UNBOUNDED:
            assert (sizing.reserved_nbytes(plans, sizing.request_demand(plans, tokens)) <= memory) == does


@given(plan_sets(), SIZES, LENGTHS)
def test_an_engine_opens_with_what_was_solved_and_takes_exactly_that(plans, memory, length):
    answer = tried(plans, memory, context_length=length)
    if answer is None:
        return
    backend = ByteBackend(capacity_nbytes=memory)

    if plans.blocks:
        with CacheEngine(plans, answer.counts, backend=backend, copies=[BYTE_COPY]):
            assert backend.taken_nbytes == answer.needed_nbytes
        assert backend.taken_nbytes == 0


@given(st.integers(1, 100), st.integers(1, 50), st.integers(1, 12), st.integers(0, 20))
def test_a_window_holds_no_more_blocks_than_request_units(num_tokens, window, block, in_flight):
    """Walk a sequence, chunk by chunk: blocks wholly behind the window are released before the next chunk."""
    plan = kv_plan(geometry=BlockCacheGeometry(4 * block, 4), window=window)
    size, chunk, most, done = 4 * block, max(1, in_flight), 0, 0
    while done < num_tokens:
        first = max(0, done - (window - 1))
        done = min(num_tokens, done + chunk)
        most = max(most, -(-done // size) - first // size)

    assert most <= sizing.request_units(plan, num_tokens, in_flight)


def test_padding_counts_the_room_that_aligns_pools():
    plans = build_block_cache_plan(
        kv=KvCacheConfig(layers=2, dtype="float16", num_kv_heads=2, head_dim=16),
        geometry=BlockCacheGeometry(16),
        device="null",
        policy=POLICY,
        hints=LayoutHints(base_alignment=1 << 21),
    )

    # 16 tokens * 2 heads * 16 dims * 2 bytes * K and V * 2 layers = 4096 bytes a block, after 2 MiB to align the pool
    answer = sizing.solve(plans, memory_nbytes=(1 << 21) + 3 * 4096 + 5)

    assert (answer.counts, answer.padding_nbytes) == ({"full": 3}, 1 << 21)


def test_models_of_one_block_table_hold_what_either_needs():
    """A draft with full attention keeps the blocks that the target's window would let go, in any order of models."""
    target, draft = plan_set(kv_plan(window=8)), plan_set(kv_plan(rows=1))

    for sets in ([target, draft], [draft, target]):
        assert sizing.request_demand(sets, 400) == {"full": 100}
        assert sizing.longest_sequence(sets, {"full": 10}) == 40


def test_a_memory_model_shares_the_slots():
    """W33: its states are in the same sum."""
    sets = {"target": hybrid(), "memory": states(name="ssm", layers=(0, 1))}

    answer = sizing.solve(sets, memory_nbytes=1 << 20, num_blocks={"full": 1, "sliding": 1})

    # two blocks; then 256 bytes of the target and 512 of the memory model a slot
    assert answer.counts["state"] == ((1 << 20) - 2 * BLOCK) // (3 * SLOT)


def test_windows_and_states_have_no_longest_sequence():
    plans = CachePlanSet((kv_plan(window=8), *states()), "null", "bytes")

    assert sizing.longest_sequence(plans, {"full": 3, "state": 1}) == sizing.UNBOUNDED
    assert sizing.longest_sequence(plans, {"full": 2, "state": 1}) == 8
    assert sizing.longest_sequence(plans, {"full": 3, "state": 0}) == 0


def test_given_slots_leave_the_rest_to_the_blocks():
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    # 8 slots take 2048 bytes; 7 blocks of the remaining 8192 - 2048 = 6144 would be 7168, so 6
    assert sizing.fit(plans, memory_nbytes=8192, num_blocks={"state": 8}) == {"full": 6, "state": 8}


def test_given_counts_that_hold_too_few_sequences_are_refused():
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    with pytest.raises(
        AllocationError, match=r"3 sequences of 8 tokens take .*state: 3.*given are state: 2; 2 fit at once"
    ):
        sizing.fit(plans, memory_nbytes=1 << 20, num_blocks={"state": 2}, context_length=8, concurrency=3)


def test_sizing_keeps_nothing_of_an_earlier_answer():
    """W34: a computed count does not become an explicit one; more memory sizes up, less sizes down."""
    plans = plan_set(kv_plan())

    answers = [sizing.fit(plans, memory_nbytes=n * BLOCK)["full"] for n in (10, 20, 5, 10)]

    assert answers == [10, 20, 5, 10]


def test_few_blocks_are_still_an_answer():
    """W32: no least number of blocks aborts the caller's own search for a smaller reserve."""
    plans = plan_set(kv_plan())

    def reserve(prefill_tokens):
        return 2 * prefill_tokens

    with pytest.raises(AllocationError) as caught:
        sizing.fit(plans, memory_nbytes=16384 + 1000, reserve_nbytes=reserve(8192))
    assert (caught.value.needed_nbytes, caught.value.free_nbytes) == (BLOCK, 1000)
    assert sizing.fit(plans, memory_nbytes=16384 + 1000, reserve_nbytes=reserve(4096)) == {"full": 8}
    assert sizing.fit(plans, memory_nbytes=BLOCK) == {"full": 1}


@pytest.mark.parametrize(
    ("counts", "told"), [({"full": 1}, "names group"), (3, "give one each"), ({"full": 1, "state": -1}, "is -1")]
)
def test_an_engine_s_counts_name_every_group(counts, told):
    plans = CachePlanSet((kv_plan(), *states()), "null", "bytes")

    with pytest.raises(PlanError, match=told):
        sizing.counts_for(plans, counts, "counts")


def test_group_geometries_of_their_own():
    plans = build_block_cache_plan(
        kv=[
            KvCacheConfig(layers=1, dtype="float16", num_kv_heads=2, head_dim=16),
            KvCacheConfig(layers=[1], dtype="float16", num_kv_heads=2, head_dim=16, group="wide"),
        ],
        groups=[GroupSpec("wide", BlockCacheGeometry(8, 4))],
        geometry=PAGE_4,
        device="null",
        policy=POLICY,
    )

    assert sizing.request_demand(plans, 9) == {"full": 3, "wide": 2}
