"""Drafts over ring states: what rejected tokens overwrote comes back byte for byte, and nothing else changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_oracle import RowOracle
from samples import POLICY, Index
from state_layouts import POLICIES, open_states, state_plans

from cachecore import (
    AllocationError,
    BlockCopyInfo,
    BlockIndexError,
    ByteBackend,
    EngineStateError,
    PlanError,
    PluginError,
    StateCacheRequest,
)
from cachecore.reference import BYTE_COPY
from cachecore.speculation import Ring, SpeculativeTransaction, scratch_nbytes

NUM_SLOTS = 4
both_layouts = pytest.mark.parametrize("policy", POLICIES)


def ring_state(name, shape, dtype, **more):
    axes = ("token", *("other",) * (len(shape) - 1))
    return StateCacheRequest(name=name, shape=shape, dtype=dtype, axes=axes, **more)


# The shapes of a compressed-attention model, smaller: rows of 73, 12 and 10 bytes; no packed slot is a multiple of 73.
RING_STATES = (
    ring_state("window", (8, 73), "uint8", layers=(0, 1, 5)),
    StateCacheRequest(name="recurrent", shape=(9,), dtype="float32", layers=(1,)),
    ring_state("ratio_4", (16, 3), "float32", layers=(5,)),
    ring_state("ratio_128", (10, 5), "float16", layers=(0,)),
)
RINGS = (Ring("window"), Ring("ratio_4", shift=4, max_tokens=8), Ring("ratio_128", shift=-3, max_tokens=5))


def opened(policy, *, max_sequences=3, max_tokens=4, **more):
    engine = open_states(policy, NUM_SLOTS, requests=RING_STATES, **more)
    oracle = RowOracle(engine.plans.states[0], engine.allocation())
    oracle.fill(7)
    return engine, oracle, SpeculativeTransaction(engine, RINGS, max_sequences=max_sequences, max_tokens=max_tokens)


def places(oracle, slot, position):
    """Pool, first byte and bytes of everywhere that token ``position`` of ``slot`` is written."""
    for ring in RINGS:
        spec = next(number for number, one in enumerate(oracle.plan.specs) if one.name == ring.name)
        num_rows = oracle.plan.specs[spec].shape[0]
        for row in range(oracle.plan.specs[spec].num_rows):
            pool, start, nbytes = oracle.place((spec, row, slot, 0))
            each = nbytes // num_rows
            yield pool, start + (position + ring.shift) % num_rows * each, each


def write_token(oracle, slot, position, fill, pools=None):
    for pool, start, nbytes in places(oracle, slot, position):
        target = oracle.allocation.pools[pool].pool if pools is None else pools[pool]
        target[start : start + nbytes] = random.Random(f"{slot} {position} {fill}").randbytes(nbytes)


@st.composite
def drafts(draw):
    slots = draw(st.lists(st.integers(0, NUM_SLOTS - 1), max_size=3, unique=True))
    num_tokens = draw(st.integers(1, 4))
    positions = [draw(st.integers(0, 1000)) for _ in slots]
    return slots, positions, num_tokens, [draw(st.integers(0, num_tokens)) for _ in slots]


@both_layouts
@given(rounds=st.lists(drafts(), min_size=1, max_size=3))
def test_rejected_tokens_leave_no_trace_and_accepted_ones_stay(policy, rounds):
    _, oracle, transaction = opened(policy)

    for number, (slots, positions, num_tokens, accepted) in enumerate(rounds):
        expected = [bytearray(pool) for pool in oracle.pools()]
        for slot, position, count in zip(slots, positions, accepted, strict=True):
            for token in range(count):
                write_token(oracle, slot, position + token, number, expected)

        transaction.begin(slots, positions, num_tokens)
        for slot, position in zip(slots, positions, strict=True):
            for token in range(num_tokens):
                write_token(oracle, slot, position + token, number)
        transaction.finish(accepted)

        assert oracle.pools() == [bytes(pool) for pool in expected]


@both_layouts
def test_a_full_ring_may_be_drafted_whole(policy):
    engine, oracle, transaction = opened(policy, max_tokens=5)
    before = oracle.pools()

    transaction.begin([1], [6], 5)
    for token in range(5):
        write_token(oracle, 1, 6 + token, "draft")
    transaction.finish([0])

    assert oracle.pools() == before
    with pytest.raises(PlanError, match="a draft of 6 tokens is too long for ring 'ratio_128', which takes 5"):
        SpeculativeTransaction(engine, RINGS, max_sequences=1, max_tokens=6)


@both_layouts
def test_a_shifted_ring_keeps_the_row_that_the_token_goes_to(policy):
    engine = open_states(policy, 1, requests=[ring_state("ratio_4", (8, 2), "uint8")])
    state = engine.state_caches["ratio_4"]
    state.frombytes(bytes(range(16)))

    with SpeculativeTransaction(engine, [Ring("ratio_4", shift=4)], max_sequences=1, max_tokens=2) as transaction:
        transaction.begin([0], [3], 2)
        state.frombytes(b"\xff" * 16)
        transaction.finish([0])

    # tokens 3 and 4 go to rows (3 + 4) % 8 = 7 and (4 + 4) % 8 = 0
    assert state.tobytes() == bytes([0, 1]) + b"\xff" * 12 + bytes([14, 15])


@both_layouts
def test_what_a_transaction_takes_is_known_before_and_given_back(policy):
    backend = ByteBackend(policy)
    engine, _, transaction = opened(policy, backend=backend)
    (plan,) = engine.plans.states
    taken = backend.taken_nbytes

    transaction.close()
    transaction.close()

    # 3 sequences * 4 tokens of 3 rows of 73, one of 12, and one of 10 bytes
    assert taken - backend.taken_nbytes == 12 * (3 * 73 + 12 + 10)
    assert taken - backend.taken_nbytes == scratch_nbytes(plan, RINGS, max_sequences=3, max_tokens=4)


@pytest.mark.parametrize(
    ("rings", "told"),
    [
        ([], "no rings given"),
        ([Ring("windw")], "state 'windw' does not exist in group 'state'; the states are window, recurrent"),
        ([Ring("recurrent")], r"state 'recurrent' has axes \('other',\)"),
        ([Ring("window"), Ring("window", shift=1)], "repeat; a state is one ring"),
        ([Ring("ratio_4", max_tokens=3)], "a draft of 4 tokens is too long for ring 'ratio_4', which takes 3"),
    ],
)
def test_rings_that_are_none_are_refused(rings, told):
    backend = ByteBackend()
    engine = open_states(POLICY, NUM_SLOTS, requests=RING_STATES, backend=backend)
    taken = backend.taken_nbytes

    with pytest.raises(PlanError, match=told):
        SpeculativeTransaction(engine, rings, max_sequences=2, max_tokens=4)

    assert backend.taken_nbytes == taken


@pytest.mark.parametrize("axes", [("token", "other"), ("other", "other")])
def test_a_ring_has_rows_with_bytes(axes):
    shape = (8, 0) if axes[0] == "token" else (8, 4)
    (plan,) = state_plans(POLICY, [StateCacheRequest(name="window", shape=shape, dtype="uint8", axes=axes)]).states

    with pytest.raises(PlanError, match="first axis of a ring is 'token'"):
        scratch_nbytes(plan, [Ring("window")], max_sequences=1, max_tokens=1)


@pytest.mark.parametrize("more", [{"shift": 1.5}, {"max_tokens": 0}, {"max_tokens": "all"}])
def test_a_ring_s_numbers_are_whole(more):
    with pytest.raises((PlanError, TypeError), match="ring 'window'"):
        Ring("window", **more)


@pytest.mark.parametrize(
    ("slots", "positions", "num_tokens", "error", "told"),
    [
        ([4], [0], 1, BlockIndexError, "slot 4 is out of range; there are 4"),
        ([-1], [0], 1, BlockIndexError, "slot -1"),
        ([0], [-1], 1, PlanError, "the position of slot 0 is -1"),
        ([0, 0], [0, 8], 1, PlanError, "slot 0 is named twice"),
        ([0], [0, 1], 1, PlanError, "1 slots, 2 positions"),
        ([0, 1, 2, 3], [0] * 4, 4, PlanError, "at most 12 rows in all"),
        ([0], [0], 0, PlanError, "a draft of 0 tokens"),
        ([0], [0], 5, PlanError, "expected 1 to max_tokens=4"),
        ([0.5], [0], 1, TypeError, "a slot must be an integer"),
    ],
)
def test_drafts_that_make_no_sense_are_refused_and_none_is_under_way(slots, positions, num_tokens, error, told):
    _, _, transaction = opened(POLICY)

    with pytest.raises(error, match=told):
        transaction.begin(slots, positions, num_tokens)
    with pytest.raises(EngineStateError, match="no draft is under way"):
        transaction.finish([0])


@pytest.mark.parametrize(
    ("accepted", "error", "told"),
    [
        ([1], PlanError, "1 accepted counts for 2 sequences"),
        ([0, 3], PlanError, "slot 3: 3 draft tokens accepted; expected 0 to 2"),
        ([0, -1], PlanError, "slot 3: -1"),
        ([0, 1.0], TypeError, "an accepted count"),
    ],
)
def test_a_refused_finish_may_be_tried_again(accepted, error, told):
    _, oracle, transaction = opened(POLICY)
    before = oracle.pools()
    transaction.begin([Index(0), 3], [5, Index(6)], 2)
    write_token(oracle, 3, 6, "draft")

    with pytest.raises(error, match=told):
        transaction.finish(accepted)
    with pytest.raises(EngineStateError, match="a draft is under way"):
        transaction.begin([0], [0], 1)
    transaction.finish([0, 0])

    assert oracle.pools() == before


def test_a_closed_transaction_or_engine_takes_no_draft():
    engine, _, transaction = opened(POLICY)
    other = SpeculativeTransaction(engine, RINGS, max_sequences=1, max_tokens=1)
    other.begin([0], [0], 1)
    transaction.close()

    with pytest.raises(EngineStateError, match="this transaction is closed"):
        transaction.begin([0], [0], 1)
    engine.close()
    for use in (lambda: other.finish([0]), lambda: other.begin([0], [0], 1)):
        with pytest.raises(EngineStateError, match="this engine is closed"):
            use()
    other.close()


def test_a_transaction_does_not_outlive_a_sleep():
    engine, _, transaction = opened(POLICY)
    engine.sleep()
    with pytest.raises(EngineStateError, match="asleep"):
        transaction.begin([0], [0], 1)
    engine.wake()

    with pytest.raises(EngineStateError, match=r"slept since this transaction was made.*close it and make another"):
        transaction.begin([0], [0], 1)
    transaction.close()
    engine.close()

    assert engine.backend.taken_nbytes == 0


def test_memory_that_cannot_be_had_is_not_kept():
    needed = sum(plan.reserved_nbytes(NUM_SLOTS) for plan in state_plans(POLICY, RING_STATES))
    backend = ByteBackend(capacity_nbytes=needed)
    engine = open_states(POLICY, NUM_SLOTS, requests=RING_STATES, backend=backend)

    with pytest.raises(AllocationError):
        SpeculativeTransaction(engine, RINGS, max_sequences=1, max_tokens=1)

    assert backend.taken_nbytes == needed


@pytest.mark.parametrize("fail_at", range(6))
def test_a_copy_that_cannot_be_built_keeps_no_memory(fail_at):
    # three rings, one copy out of each and one back
    built = []

    def build(context):
        if len(built) - 1 == fail_at:  # the first is the engine's own
            raise OSError("no stream")
        built.append(context)
        return BYTE_COPY.build(context)

    backend = ByteBackend()
    copies = [BlockCopyInfo("failing", 1, lambda src, dst: None, build)]
    engine = open_states(POLICY, NUM_SLOTS, requests=RING_STATES, backend=backend, copies=copies)
    taken = backend.taken_nbytes

    with pytest.raises(PluginError, match="no stream"):
        SpeculativeTransaction(engine, RINGS, max_sequences=1, max_tokens=1)

    assert (len(built) - 1, backend.taken_nbytes) == (fail_at, taken)


def test_groups_are_named_where_there_are_several():
    requests = [*RING_STATES, ring_state("other", (4, 2), "uint8", group="ring")]
    engine = open_states(POLICY, {"state": 2, "ring": 3}, requests=requests)

    with pytest.raises(PlanError, match="say which"):
        SpeculativeTransaction(engine, [Ring("other")], max_sequences=1, max_tokens=1)
    transaction = SpeculativeTransaction(engine, [Ring("other")], max_sequences=1, max_tokens=1, group="ring")
    transaction.begin([2], [0], 1)
    transaction.finish([1])


WRONG = {
    "engine": (lambda engine: SpeculativeTransaction("engine", RINGS, max_sequences=1, max_tokens=1), "engine must be"),
    "rings": (lambda engine: SpeculativeTransaction(engine, "window", max_sequences=1, max_tokens=1), "rings must be"),
    "a ring": (lambda engine: SpeculativeTransaction(engine, ["window"], max_sequences=1, max_tokens=1), "of Ring"),
    "a name": (lambda engine: Ring(3), "a ring's name must be"),
    "sequences": (
        lambda engine: SpeculativeTransaction(engine, RINGS, max_sequences="2", max_tokens=1),
        "max_sequences",
    ),
    "tokens": (lambda engine: SpeculativeTransaction(engine, RINGS, max_sequences=2, max_tokens=1.5), "max_tokens"),
    "plan": (lambda engine: scratch_nbytes(engine, RINGS, max_sequences=2, max_tokens=1), "plan must be the plan of"),
}


@pytest.mark.parametrize(("call", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_type_is_told_by_name(call, told):
    backend = ByteBackend()
    engine = open_states(POLICY, NUM_SLOTS, requests=RING_STATES, backend=backend)
    taken = backend.taken_nbytes

    with pytest.raises(TypeError, match=told):
        call(engine)

    assert backend.taken_nbytes == taken


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda draft: draft.begin(1, [0], 1), "slots must be a sequence, not 1"),
        (lambda draft: draft.begin([1], None, 1), "positions must be a sequence, not None"),
        (lambda draft: draft.begin(["1"], [0], 1), "a slot must be an integer"),
        (lambda draft: draft.begin([1], [0], None), "num_tokens must be an integer"),
        (lambda draft: (draft.begin([1], [0], 1), draft.finish(1)), "accepted must be a sequence, not 1"),
    ],
)
def test_a_draft_of_a_wrong_type_changes_nothing(call, told):
    _, oracle, transaction = opened(POLICY)
    before = oracle.pools()

    with pytest.raises(TypeError, match=told):
        call(transaction)

    assert oracle.pools() == before
