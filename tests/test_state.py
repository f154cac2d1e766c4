"""Slots of states: views, zero, copy and swap, in both layouts, against bytes read straight from the pools."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_oracle import RowOracle
from samples import POLICY, Index, kv_plan, open_bytes, plan_set
from state_layouts import POLICIES, REQUESTS, open_states, state_plans
from strategies import block_pairs

from cachecore import (
    AllocationError,
    BlockIndexError,
    BlockPairsError,
    ByteBackend,
    CacheLookupError,
    EngineStateError,
    PlanError,
    StateCacheEngine,
    StateCacheRequest,
)
from cachecore.reference import BYTE_COPY

NUM_SLOTS, NUM_HOST_SLOTS = 6, 4
both_layouts = pytest.mark.parametrize("policy", POLICIES)


def filled(policy, num_host_slots=0):
    """An engine with random bytes everywhere, and what reads them."""
    engine = open_states(policy, NUM_SLOTS, num_host_slots)
    (plan,) = engine.plans.states
    device = RowOracle(plan, engine.allocation())
    device.fill(1)
    host = None
    if num_host_slots:
        host = RowOracle(plan, engine.allocation(host=True), host=True)
        host.fill(2)
    return engine, device, host


def moved(before, oracle, pairs, source):
    """``before`` with the destinations' rows replaced by the sources'."""
    after = dict(before)
    for src, dst in pairs:
        for spec, row, slot, page in oracle.row_pages([dst]):
            after[spec, row, slot, page] = source[spec, row, src, page]
    return after


@both_layouts
def test_states_are_found_by_name_and_layer(policy):
    caches = open_states(policy).state_caches

    assert list(caches) == ["conv", "ssm", "global"]
    assert caches["ssm"].shape == (3, NUM_SLOTS, 3, 11)
    assert caches.layer("conv", 4).shape == (NUM_SLOTS, 5)
    assert caches["global"].shape == (1, NUM_SLOTS, 7)
    assert caches.layer("global", 0).shape == (NUM_SLOTS, 7)


@both_layouts
def test_a_layer_writes_its_own_row_and_nothing_else(policy):
    engine = open_states(policy)
    oracle = RowOracle(engine.plans.states[0], engine.allocation())
    before = oracle.read()

    engine.state_caches.layer("conv", 0).frombytes(b"\xff" * 10 * NUM_SLOTS)

    # conv lists layer 0 second: row 1
    changed = {key for key, value in oracle.read().items() if value != before[key]}
    assert changed == {(0, 1, slot, 0) for slot in range(NUM_SLOTS)}


@both_layouts
def test_a_state_has_no_row_of_other_layers(policy):
    caches = open_states(policy).state_caches

    with pytest.raises(BlockIndexError, match="layer 2 of cache 'conv'"):
        caches.layer("conv", 2)
    with pytest.raises(CacheLookupError, match="cache 'conf' does not exist"):
        caches.layer("conf", 4)


@both_layouts
def test_a_slot_takes_its_states_and_no_more_than_alignment(policy):
    (plan,) = state_plans(policy).states

    payload = 2 * 10 + 3 * 132 + 7
    # packed: conv at 0, ssm at 64, global (aligned to 256) at 512, the slot rounded up to 768
    assert plan.slot_nbytes() == (768 if plan.layout.kind == "packed-state" else payload)
    # host: rows aligned for one 16-byte word: conv 2 * 16, ssm 2 * 144 + 132 and 12 before global, 9 after it
    assert plan.slot_nbytes(host=True) == 2 * 16 + 3 * 144 + 16


@both_layouts
@given(slots=st.lists(st.integers(0, NUM_SLOTS - 1)))
def test_zero_clears_the_slots_named_and_no_other(policy, slots):
    engine, oracle, _ = filled(policy)
    rows, pools = oracle.read(), oracle.pools()

    engine.zero_slots(slots).synchronize()

    assert oracle.read() == {key: bytes(len(row)) if key[2] in slots else row for key, row in rows.items()}
    before, after = oracle.padding_of(pools, slots)
    assert before == after


@both_layouts
def test_zero_costs_what_it_names(policy):
    class Counting(ByteBackend):
        zeroed = ()

        def zero(self, allocation, entries):
            self.zeroed = tuple(entries)
            return super().zero(allocation, entries)

    backend = Counting(policy)
    open_states(policy, 5000, backend=backend).zero_slots([4999, Index(7)])

    assert backend.zeroed == (4999, 7)


@both_layouts
@pytest.mark.parametrize(
    ("slots", "error"),
    [([0, 6], BlockIndexError), ([-1], BlockIndexError), ([1.0], TypeError), ([True], TypeError), ("01", TypeError)],
)
def test_zero_refuses_what_is_no_slot_and_changes_nothing(policy, slots, error):
    """W26."""
    engine, oracle, _ = filled(policy)
    before = oracle.pools()

    with pytest.raises(error, match="slot"):
        engine.zero_slots(slots)

    assert oracle.pools() == before


@both_layouts
@given(pairs=block_pairs(NUM_SLOTS, NUM_SLOTS, disjoint=True))
def test_copy_moves_whole_slots_and_nothing_else(policy, pairs):
    engine, oracle, _ = filled(policy)
    rows, pools = oracle.read(), oracle.pools()

    engine.copy_slots(pairs).synchronize()

    assert oracle.read() == moved(rows, oracle, pairs, rows)
    before, after = oracle.padding_of(pools, [dst for _, dst in pairs])
    assert before == after


@both_layouts
def test_one_slot_may_be_forked_to_many(policy):
    engine, oracle, _ = filled(policy)
    rows = oracle.read()

    engine.copy_slots([(2, 0), (2, 5)])

    assert oracle.read() == moved(rows, oracle, [(2, 0), (2, 5)], rows)


@both_layouts
@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([(0, 6)], BlockIndexError),
        ([(-1, 0)], BlockIndexError),
        ([(0, 1), (2, 1)], BlockPairsError),
        ([(0, 1), (1, 2)], BlockPairsError),
        ([(3, 3)], BlockPairsError),
        ([("0", 1)], TypeError),
        ("01", TypeError),
    ],
)
def test_copy_refuses_what_has_no_meaning_and_changes_nothing(policy, pairs, error):
    """W26: validated before anything else, however many states there are."""
    engine, oracle, _ = filled(policy)
    before = oracle.pools()

    with pytest.raises(error):
        engine.copy_slots(pairs)

    assert oracle.pools() == before


@both_layouts
def test_an_engine_without_slots_still_refuses_junk(policy):
    """W26: a copy without memory to copy in returned before it looked."""
    engine = open_states(policy, 0)

    engine.copy_slots([])
    engine.zero_slots([])
    with pytest.raises(BlockIndexError):
        engine.copy_slots([(0, 1)])
    with pytest.raises(BlockIndexError):
        engine.zero_slots([0])


@both_layouts
@given(
    out=block_pairs(NUM_SLOTS, NUM_HOST_SLOTS),
    back=block_pairs(NUM_HOST_SLOTS, NUM_SLOTS),
)
def test_swapped_slots_come_back_byte_for_byte(policy, out, back):
    engine, device, host = filled(policy, NUM_HOST_SLOTS)
    device_rows, host_rows = device.read(), host.read()

    engine.swap_out(out).synchronize()
    host_after = moved(host_rows, host, out, device_rows)
    assert (host.read(), device.read()) == (host_after, device_rows)

    engine.swap_in(back).synchronize()
    assert (host.read(), device.read()) == (host_after, moved(device_rows, device, back, host_after))


@both_layouts
def test_a_slot_on_the_host_is_one_run(policy):
    (plan,) = state_plans(policy).states

    assert [(pool.outer, plan.host_layout.pages_per_entry) for pool in plan.host_layout.pools] == [(1, 1)]


def test_swap_without_a_host_tier_is_refused():
    with pytest.raises(EngineStateError, match="group 'state' has no host tier"):
        open_states(POLICY).swap_out([(0, 0)])


TWO_GROUPS = (*REQUESTS, StateCacheRequest(name="window", shape=(4, 8), dtype="float16", group="ring", layers=(1,)))


@both_layouts
def test_groups_have_slots_of_their_own(policy):
    engine = open_states(policy, {"state": 3, "ring": 5}, requests=TWO_GROUPS)

    engine.zero_slots([4], group="ring")
    with pytest.raises(BlockIndexError, match="group 'state' has 3"):
        engine.zero_slots([4], group="state")
    with pytest.raises(PlanError, match="groups state, ring; say which"):
        engine.zero_slots([0])
    assert engine.state_caches.layer("window", 1).shape == (5, 4, 8)


def test_states_beside_blocks_are_opened_and_closed_with_them():
    backend = ByteBackend()
    plans = plan_set(kv_plan(), *state_plans(POLICY))
    engine = open_bytes(plans, {"full": 4, "state": 3}, backend=backend)
    states = engine.states

    engine.close()

    assert backend.taken_nbytes == 0
    for use in (lambda: states.zero_slots([0]), lambda: states.state_caches["ssm"], lambda: states.copy_slots([])):
        with pytest.raises(EngineStateError, match="closed"):
            use()


def test_block_groups_are_not_opened_as_states():
    with pytest.raises(PlanError, match=r"has block groups \(full\); open a CacheEngine"):
        StateCacheEngine(plan_set(kv_plan()), 1, backend=ByteBackend(), copies=[BYTE_COPY])


@both_layouts
@pytest.mark.parametrize("fail_at", range(4))
def test_a_failed_allocation_of_states_keeps_nothing(policy, fail_at):
    class Failing(ByteBackend):
        num_allocations = 0

        def allocate(self, *given, **more):
            if self.num_allocations == fail_at:
                raise AllocationError("no memory")
            self.num_allocations += 1
            return super().allocate(*given, **more)

    backend = Failing(policy)

    # two groups, two tiers each
    with pytest.raises(AllocationError, match="no memory"):
        open_states(policy, {"state": 3, "ring": 5}, {"state": 1, "ring": 1}, requests=TWO_GROUPS, backend=backend)

    assert (backend.num_allocations, backend.taken_nbytes) == (fail_at, 0)


def test_slots_in_flight_are_those_of_the_transfer():
    engine = open_states(POLICY, 4, 4)

    engine.swap_out([(0, 2)])

    assert engine.host_slots_in_flight() == frozenset()  # the byte backend is done when it returns
