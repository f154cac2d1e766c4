from __future__ import annotations

import copy
import pickle

import pytest
from opened_groups import opened_group
from row_oracle import RowOracle
from samples import COUNTS, HOST_COUNTS, kv_plan, open_bytes, three_groups
from stable_bytes import StableBytes

from cachecore import AllocationError, BlockPairs, ByteBackend, DeviceSpec
from cachecore.group_memory import GroupMemory
from cachecore.reference import BYTE_COPY


def memory(backend, num_host_blocks=2, **more):
    return GroupMemory(
        kv_plan(), 4, num_host_blocks, backend=backend, copies=[BYTE_COPY], device=DeviceSpec("null"), **more
    )


@pytest.mark.parametrize(("capacity", "message"), [(4095, "4096 bytes"), (4096, "1024 bytes")])
def test_a_tier_that_cannot_be_had_takes_the_other_along(capacity, message):
    backend = ByteBackend(capacity_nbytes=capacity)

    with pytest.raises(AllocationError, match=message):
        memory(backend)

    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("stable", [False, True])
def test_what_is_released_comes_back_as_zeros(stable):
    backend = StableBytes()
    group = memory(backend, stable_addresses=stable)
    RowOracle(kv_plan(), group.device).fill(1)

    group.release()
    assert backend.taken_nbytes == 1024
    same = group.restore()

    assert same is stable
    assert not any(map(any, RowOracle(kv_plan(), group.device).pools()))
    group.free()
    assert backend.taken_nbytes == 0


def test_blocks_move_between_any_two_allocations_of_the_plan():
    backend = ByteBackend()
    group = memory(backend, 0)
    device = RowOracle(kv_plan(), group.device)
    device.fill(1)
    kept = group.take_host(2)

    group.move(group.device, kept, BlockPairs([3, 0], [0, 1])).synchronize()

    held = RowOracle(kv_plan(), kept, host=True).read()
    assert {key: held[*key[:2], {3: 0, 0: 1}[key[2]], key[3]] for key in device.read([0, 3])} == device.read([0, 3])
    group.drop(kept)
    assert backend.taken_nbytes == 4096


OWNERS = {
    "CacheEngine": lambda engine: engine,
    "StateCacheEngine": lambda engine: engine.states,
    "group": lambda engine: engine.group("full"),
    "view": lambda engine: engine.block_caches,
}
WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
def test_device_memory_is_not_duplicated(owner, way):
    backend = ByteBackend()
    engine = open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    with pytest.raises(TypeError, match=r"memory.* cannot be copied or pickled; "):
        way(owner(engine))

    assert backend.taken_nbytes == 6912 + 2560


def test_a_model_that_holds_an_engine_says_what_cannot_be_copied():
    with pytest.raises(TypeError, match=r"a CacheEngine owns device memory .* open another with open_engine\(\)"):
        copy.deepcopy({"engine": open_bytes(kv_plan())})


def test_a_group_is_its_two_tiers():
    assert isinstance(opened_group()[0], GroupMemory)
