"""Sleep and wake on torch devices: contents, views, and memory that is given back."""

from __future__ import annotations

import gc
import resource
import weakref
from typing import Any

import pytest
import torch
from cachecore_torch_default import TorchBackend
from cachecore_torch_default.plugin import cachecore_register_block_copies
from torch import Tensor

from cachecore import (
    BlockCacheGeometry,
    CacheEngine,
    CachePlanSet,
    DeviceSpec,
    EngineStateError,
    KvCacheConfig,
    StandardLayoutPolicy,
    StateCacheRequest,
    kv_specs,
    plan_from_specs,
    plan_from_states,
)

COPIES = tuple(cachecore_register_block_copies())
GEOMETRY = BlockCacheGeometry(32, 16)
POLICY = StandardLayoutPolicy()


def opened(device: DeviceSpec, num_blocks: int = 6, **more: Any) -> CacheEngine[Tensor]:
    """Quantised K/V with scales, and a state; block and slot 2 are full of ones."""
    config = KvCacheConfig(layers=3, dtype="bfloat16", num_kv_heads=2, head_dim=32, quant_policy="int8")
    states = plan_from_states([StateCacheRequest(name="ssm", shape=(16,), dtype="float32", layers=(0, 2))], POLICY)
    plans = CachePlanSet(
        (plan_from_specs(kv_specs(config, GEOMETRY, POLICY), GEOMETRY, POLICY), *states), str(device), "torch-default"
    )
    counts = {"full": num_blocks, "state": num_blocks}
    options = {"backend": TorchBackend(), "copies": COPIES, "host_counts": {"full": 2, "state": 0}, **more}
    return CacheEngine(plans, counts, **options)


def tensors(engine: CacheEngine[Tensor]) -> list[Tensor]:
    """Every layer's tensors, and the states'."""
    layers = [tensor for layer in engine.layer_caches for tensor in layer]
    return [*layers, engine.states.state_caches["ssm"]]


def fill(engine: CacheEngine[Tensor]) -> list[Tensor]:
    for allocation in (engine.allocation(), engine.states.allocation()):
        for pool in allocation.pools:
            pool.random_(0, 120)
    return [tensor.clone() for tensor in tensors(engine)]


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(
        torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))
        for one, two in zip(found, wanted, strict=True)
    )


def test_level_1_keeps_values_scales_and_states(device: DeviceSpec) -> None:
    # vllm#29341: the scales were lost
    with opened(device) as engine:
        wanted = fill(engine)

        engine.sleep()
        engine.wake()

        assert same(tensors(engine), wanted)
        assert engine.generation == 2


def test_level_2_is_zero(device: DeviceSpec) -> None:
    with opened(device) as engine:
        fill(engine)

        engine.sleep(2)
        engine.wake()

        assert not any(bool(tensor.any()) for tensor in tensors(engine))


def test_live_blocks_come_back_where_they_were(device: DeviceSpec) -> None:
    with opened(device) as engine:
        wanted = fill(engine)

        engine.sleep(live={"full": [5, 2], "state": [0]})
        engine.wake()

        *layers, states = tensors(engine)
        kept = [4, 5, 10, 11]  # two pages a block
        gone = [0, 1, 2, 3, 6, 7, 8, 9]
        for layer, old in zip(layers, wanted, strict=False):
            assert torch.equal(layer[kept], old[kept])
            assert not bool(layer[gone].any())
        assert torch.equal(states[:, :1].view(torch.uint8), wanted[-1][:, :1].view(torch.uint8))
        assert not bool(states[:, 1:].any())


@pytest.mark.parametrize("level", [1, 2])
def test_asleep_no_tensor_of_the_engine_is_left(device: DeviceSpec, level: int) -> None:
    engine = opened(device)
    rows = [weakref.ref(tensor) for tensor in tensors(engine)]

    engine.sleep(level)
    gc.collect()

    assert not any(row() is not None for row in rows)
    engine.close()


def test_fifty_sleeps_take_no_more_memory(device: DeviceSpec) -> None:
    with opened(device, 2048) as engine:  # some 32 MiB
        wanted = fill(engine)
        before = None
        for cycle in range(50):
            engine.sleep()
            engine.wake()
            if cycle == 4:
                before = _taken(device)

        assert before is not None
        assert _taken(device) - before < 32 << 20
        assert same(tensors(engine), wanted)


def _taken(device: DeviceSpec) -> int:
    if device.type == "cpu":
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    memory = TorchBackend().memory(device)
    return memory.total_nbytes - memory.free_nbytes


def test_asleep_the_memory_is_free(device: DeviceSpec) -> None:
    with opened(device, 2048) as engine:
        fill(engine)
        awake = _taken(device)
        nbytes = engine.stats().groups[0].reserved_nbytes

        engine.sleep(2)

        assert awake - _taken(device) >= nbytes // 2


def test_stable_addresses_are_refused_with_the_reason(device: DeviceSpec) -> None:
    with pytest.raises(EngineStateError, match="backend 'torch-default' cannot keep addresses over sleep"):
        opened(device, stable_addresses=True)


def test_the_device_gets_back_what_torch_would_keep(monkeypatch: pytest.MonkeyPatch, device: DeviceSpec) -> None:
    emptied = []
    monkeypatch.setattr("cachecore_torch_default.backend.return_cached", emptied.append)
    with opened(device) as engine:
        engine.sleep(2)

        # one release a group
        assert [found.type for found in emptied] == [device.type] * 2
        engine.wake()
