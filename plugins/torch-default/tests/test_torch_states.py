"""Slots and drafts on torch devices: every byte of both tiers against the core's ``ByteBackend``."""

from __future__ import annotations

from typing import Any

import pytest
from cachecore_torch_default import TorchBackend
from cachecore_torch_default.plugin import cachecore_register_block_copies
from cachecore_torch_default.testing import draw_pairs, fill_tier, tier_contents
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from cachecore import (
    ByteBackend,
    CachePlanSet,
    DeviceSpec,
    StandardLayoutPolicy,
    StateCacheEngine,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.layout_kinds import contiguous_state_layout
from cachecore.reference import BYTE_COPY
from cachecore.speculation import Ring, SpeculativeTransaction

COPIES = tuple(cachecore_register_block_copies())
NUM_SLOTS, NUM_HOST_SLOTS = 5, 4
RING = ("token", "other")
STATES = (
    StateCacheRequest(name="window", shape=(8, 73), dtype="float8_e4m3fn", axes=RING, layers=(0, 1, 5)),
    StateCacheRequest(name="recurrent", shape=(3, 11), dtype="float32", layers=(1, 4)),
    StateCacheRequest(name="ratio_4", shape=(16, 3), dtype="float32", axes=RING, layers=(5,)),
    StateCacheRequest(name="ratio_128", shape=(10, 5), dtype="bfloat16", axes=RING, alignment=2, layers=(0,)),
)
RINGS = (Ring("window"), Ring("ratio_4", shift=4, max_tokens=8), Ring("ratio_128", max_tokens=5))


class ContiguousStates(StandardLayoutPolicy):
    """One dense pool a state."""

    name = "contiguous-states"

    def select_state_layout(self, specs: Any, hints: Any) -> Any:
        """One pool each."""
        return contiguous_state_layout(specs, base_alignment=hints.base_alignment)


POLICIES = pytest.mark.parametrize("policy", [StandardLayoutPolicy(), ContiguousStates()], ids=["packed", "contiguous"])


def engine_and_oracle(policy: Any, device: DeviceSpec, num_slots: int = NUM_SLOTS) -> tuple[Any, Any]:
    """A torch engine and one on bytes, filled alike."""
    plans = CachePlanSet(plan_from_states(STATES, policy), str(device), "test")
    made = []
    for backend, copies, where in ((TorchBackend(policy), COPIES, device), (ByteBackend(policy), [BYTE_COPY], "null")):
        engine: Any = StateCacheEngine(
            plans, num_slots, backend=backend, copies=copies, device=where, host_counts=NUM_HOST_SLOTS
        )
        fill_tier(engine, 3, host=False)
        fill_tier(engine, 3, host=True)
        made.append(engine)
    return made[0], made[1]


def payload(engine: Any) -> list[bytes]:
    """Every row of every state: a swap may leave padding."""
    device = tier_contents(engine, host=False)
    (plan,) = engine.plans.states
    layout, found = plan.layout, []
    for rows in layout.slices:
        for pool, outer, offset, nbytes in rows:
            inner = layout.pools[pool].inner
            starts = [(outer * NUM_SLOTS + slot) * inner + offset for slot in range(NUM_SLOTS)]
            found += [device[pool][start : start + nbytes] for start in starts]
    return found


@POLICIES
@given(data=st.data())
def test_slots_are_zeroed_copied_and_swapped_as_on_the_byte_backend(
    device: DeviceSpec, policy: Any, data: st.DataObject
) -> None:
    engines = engine_and_oracle(policy, device)
    zeroed = data.draw(st.lists(st.integers(0, NUM_SLOTS - 1)))
    copied = draw_pairs(data.draw, NUM_SLOTS, NUM_SLOTS, disjoint=True)
    out = draw_pairs(data.draw, NUM_SLOTS, NUM_HOST_SLOTS, disjoint=False)
    back = draw_pairs(data.draw, NUM_HOST_SLOTS, NUM_SLOTS, disjoint=False)

    for engine in engines:
        engine.zero_slots(zeroed)
        engine.copy_slots(copied)
        engine.swap_out(out)
        engine.swap_in(back).synchronize()

    real, oracle = engines
    assert payload(real) == payload(oracle)
    real.close()


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[int], list[int], int, list[int]]:
    """Slots, positions, tokens, and how many of them are accepted."""
    slots = draw(st.lists(st.integers(0, NUM_SLOTS - 1), max_size=3, unique=True))
    num_tokens = draw(st.integers(1, 4))
    return (
        slots,
        [draw(st.integers(0, 99)) for _ in slots],
        num_tokens,
        [draw(st.integers(0, num_tokens)) for _ in slots],
    )


@POLICIES
@given(rounds=st.lists(drafts(), min_size=1, max_size=3))
def test_rejected_tokens_are_put_back_as_on_the_byte_backend(device: DeviceSpec, policy: Any, rounds: Any) -> None:
    engines = engine_and_oracle(policy, device)

    for engine in engines:
        with SpeculativeTransaction(engine, RINGS, max_sequences=3, max_tokens=4) as transaction:
            for number, (slots, positions, num_tokens, accepted) in enumerate(rounds):
                transaction.begin(slots, positions, num_tokens)
                fill_tier(engine, number, host=False)  # a model that writes everything
                transaction.finish(accepted)

    real, oracle = engines
    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)
    real.close()


class Calls(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("pairs", "copies", "gathers"),
    [
        ([(0, 5), (1, 6), (2, 7), (3, 8)], 1, 0),
        ([(1, 6), (0, 5), (3, 8), (2, 7)], 1, 0),  # in any order
        ([(0, 5), (1, 6), (3, 8), (4, 9)], 2, 0),
        ([(0, 5), (0, 6)], 2, 0),  # forks of one slot are no run
        ([(0, 5), (2, 7), (4, 9)], 0, 1),
    ],
    ids=["one run", "shuffled", "two runs", "forks", "no run is shorter than a gather"],
)
@POLICIES
def test_neighbouring_slots_are_copied_as_one_run(device, policy, pairs, copies, gathers):
    engine, oracle = engine_and_oracle(policy, device, 10)
    with Calls() as calls:
        engine.copy_slots(pairs)
    oracle.copy_slots(pairs)

    groups = 1 if policy.name == "standard" else len(STATES)  # a pool for each state
    assert calls.names.count("index_select") == calls.names.count("index_copy_") == gathers * groups
    assert calls.names.count("copy_") == copies * groups
    assert tier_contents(engine, host=False) == tier_contents(oracle, host=False)
