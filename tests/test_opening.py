from __future__ import annotations

import re

import pytest
from samples import COUNTS, HOST_COUNTS, POLICY, three_groups
from stable_bytes import StableBytes

from cachecore import (
    AllocationError,
    ByteBackend,
    CachePlanSet,
    DeviceSpec,
    StateCacheEngine,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.opening import open_groups
from cachecore.reference import BYTE_COPY


def opened(backend, **more):
    return open_groups(
        three_groups(), COUNTS, HOST_COUNTS, backend=backend, copies=[BYTE_COPY], device=DeviceSpec("null"), **more
    )


def test_groups_are_opened_by_name_with_their_counts():
    found = opened(ByteBackend())

    assert [(name, group.num_blocks, group.num_host_blocks) for name, group in found.items()] == [
        ("full", 4, 1),
        ("sliding", 2, 3),
        ("state", 3, 2),
    ]


@pytest.mark.parametrize("stable", [False, True])
def test_device_memory_is_stable_when_asked_for(stable):
    backend = StableBytes()

    found = opened(backend, stable_addresses=stable)

    assert len(backend.stable) == (3 if stable else 0)
    assert {group.stable_addresses for group in found.values()} == {stable}


@pytest.mark.parametrize("wrong", ["false", "no", 2, None], ids=repr)
def test_stable_addresses_is_a_bool(wrong):
    backend = StableBytes()

    with pytest.raises(TypeError, match=re.escape(f"stable_addresses must be a bool, not {wrong!r}")):
        opened(backend, stable_addresses=wrong)

    assert backend.taken_nbytes == 0


def test_a_group_that_cannot_be_had_gives_the_others_back():
    class Third(StableBytes):
        def allocate_stable(self, *given):
            if len(self.stable) == 2:
                raise AllocationError("no third")
            return super().allocate_stable(*given)

    backend = Third()

    with pytest.raises(AllocationError, match="no third"):
        opened(backend, stable_addresses=True)

    assert (backend.taken_nbytes, backend.stable) == (0, {})


def test_a_state_engine_of_its_own_keeps_addresses_and_sleeps():
    request = StateCacheRequest(name="ssm", shape=(64,), dtype="float32", layers=(1,))
    plans = CachePlanSet(plan_from_states([request], POLICY), "null", "bytes")
    states = StateCacheEngine(plans, 3, backend=StableBytes(), copies=[BYTE_COPY], stable_addresses=True)
    kept = states.state_caches.layer("ssm", 1)
    kept.frombytes(b"\4" * 768)

    states.sleep(live=[1])
    states.wake()

    assert states.state_caches.layer("ssm", 1) is kept
    assert kept.tobytes() == bytes(256) + b"\4" * 256 + bytes(256)
