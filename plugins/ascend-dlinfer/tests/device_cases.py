"""Engines on a simulated device beside the oracle: ``python device_cases.py KIND VENDOR`` prints what differed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from random import Random

import cachecore_npu_sim
import torch
from cachecore_ascend_dlinfer import DlinferBackend
from cachecore_ascend_dlinfer.plugin import cachecore_register_block_copies
from cachecore_ascend_dlinfer.vendors import VENDORS
from cachecore_torch_default.testing import engine_and_oracle, fill_tier, tier_contents

from cachecore import (
    BlockCacheGeometry,
    BlockPairs,
    ByteBackend,
    CachePlanSet,
    CacheTensorSpec,
    DeviceSpec,
    KvCacheConfig,
    LayoutHints,
    StateCacheEngine,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.kv import kv_specs
from cachecore.plan import plan_from_specs
from cachecore.reference import BYTE_COPY

VENDOR = VENDORS[sys.argv[2]]
(cachecore_npu_sim.install_native if sys.argv[1] == "native" else cachecore_npu_sim.install)(VENDOR.device_type)
BACKEND = DlinferBackend(VENDOR)
DEVICE = VENDOR.device_type
GEOMETRY = BlockCacheGeometry(32, 16)


def plans(**hints: object) -> CachePlanSet:
    config = KvCacheConfig(layers=3, num_kv_heads=2, head_dim=8, dtype="bfloat16")
    index = CacheTensorSpec(name="index", shape=(132,), dtype="uint8", row_ids=(0, 1), alignment=4)
    specs = (*kv_specs(config, GEOMETRY, BACKEND.policy), index)
    return CachePlanSet((plan_from_specs(specs, GEOMETRY, BACKEND.policy, hints=LayoutHints(**hints)),), DEVICE, "test")


def differs(engines: Sequence[object]) -> str | None:
    for host in (False, True):
        found, wanted = (tier_contents(engine, host=host) for engine in engines)
        if found != wanted:
            return f"the {'host' if host else 'device'} tier differs from the oracle"
    return None


def both(plan_set: CachePlanSet, act: Callable[[object], object]) -> str | None:
    engines = engine_and_oracle(plan_set, BACKEND, DEVICE, cachecore_register_block_copies())
    try:
        for engine in engines:
            act(engine).synchronize()
        return differs(engines)
    finally:
        for engine in engines:
            engine.close()


def copies() -> str | None:
    return both(plans(), lambda engine: engine.copy_blocks(BlockPairs([0, 1, 1], [2, 3, 4])))


def swaps() -> str | None:
    def act(engine: object) -> object:
        engine.swap_out(BlockPairs([0, 1, 2, 5], [1, 2, 3, 0])).synchronize()
        fill_tier(engine, 7, host=False)
        return engine.swap_in(BlockPairs([3, 0, 1], [0, 4, 5]))

    return both(plans(), act) or both(plans(one_run_per_block=True), act)


def zeros() -> str | None:
    return both(plans(), lambda engine: engine.zero_blocks([1, 2, 5]))


def random_swaps() -> str | None:
    random = Random(5)

    def act(engine: object) -> object:
        for _ in range(20):
            src, dst = random.sample(range(6), 4), random.sample(range(5), 4)
            engine.swap_out(BlockPairs(src, dst)).synchronize()
            work = engine.swap_in(BlockPairs(dst[:2], src[2:]))
            work.synchronize()
        return work

    engines = engine_and_oracle(plans(), BACKEND, DEVICE, cachecore_register_block_copies())
    for engine in engines:
        random.seed(5)
        act(engine)
    return differs(engines)


def views() -> str | None:
    plan_set = plans()
    real, oracle = engine_and_oracle(plan_set, BACKEND, DEVICE, cachecore_register_block_copies())
    oracle.close()
    keys = real.layer_caches[1][0]
    if not keys.is_contiguous() or keys.dtype != torch.bfloat16:
        return f"row 1 of K has strides {keys.stride()}, dtype {keys.dtype}"
    if tuple(keys.shape[1:]) != ((2, 16, 8) if VENDOR.name == "camb" else (16, 2, 8)):
        return f"a page of K has shape {tuple(keys.shape)}"
    keys.zero_()
    nbytes = plan_set.groups[0].specs[0].page_nbytes * keys.shape[0]
    if any(BACKEND.read(real.allocation(), 0, nbytes, nbytes)) or not any(
        BACKEND.read(real.allocation(), 0, 0, nbytes)
    ):
        return "a write through the view of row 1 is not in row 1 of pool 0"
    return None


def states() -> str | None:
    requests = (
        StateCacheRequest(name="conv", shape=(6, 4), dtype="bfloat16", layers=(0, 2, 5)),
        StateCacheRequest(name="ssm", shape=(2, 4, 8), dtype="float32", layers=(0, 2, 5)),
    )
    plan_set = CachePlanSet(plan_from_states(requests, BACKEND.policy), DEVICE, "test")
    copies = cachecore_register_block_copies()
    engines = [
        StateCacheEngine(plan_set, 5, backend=backend, copies=records, device=where, host_counts=4)
        for backend, records, where in (
            (BACKEND, copies, DEVICE),
            (ByteBackend(BACKEND.policy), [BYTE_COPY], "null"),
        )
    ]
    for one in engines:
        fill_tier(one, 3, host=False)
        fill_tier(one, 3, host=True)
        one.copy_slots(BlockPairs([0, 1], [2, 3])).synchronize()
        one.swap_out(BlockPairs([2], [1])).synchronize()
        one.zero_slots([2]).synchronize()
        one.swap_in(BlockPairs([1], [4])).synchronize()
    return differs(engines)


def alignment() -> str | None:
    plan = plans(base_alignment=2 << 20).groups[0]
    allocation = BACKEND.allocate(plan.layout, plan.num_entries(4), DeviceSpec.parse(DEVICE))
    wrong = [region for region in BACKEND.regions(allocation) if region.address % (2 << 20)]
    BACKEND.free(allocation)
    return f"regions {wrong} do not start at 2 MiB" if wrong else None


def indices() -> str | None:
    ids = BACKEND.index_tensor([3, 1, 2], DeviceSpec.parse(DEVICE))
    return None if (ids.dtype, ids.tolist()) == (torch.int32, [3, 1, 2]) else f"index tensor {ids}"


CASES = (copies, swaps, random_swaps, zeros, views, states, alignment, indices)

if __name__ == "__main__":
    torch.set_num_threads(1)
    plan_set = plans()
    engine, _ = engine_and_oracle(plan_set, BACKEND, DEVICE, cachecore_register_block_copies())
    paths = {copy.direction: copy.path for copy in engine.stats().groups[0].copies}
    print(json.dumps({"paths": paths, "wrong": {case.__name__: found for case in CASES if (found := case())}}))
