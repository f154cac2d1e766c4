"""Sleep and wake on a real GPU, with stable addresses and without: graphs, memory given back, and refusals."""

from __future__ import annotations

import pytest
import torch
from cachecore_cuda_triton.backend import CudaTritonBackend
from engines import blocks_of, distinct, fill, open_gpu, plan_set, registry, same, specs_of

from cachecore import (
    AllocationError,
    BlockPairs,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    DeviceSpec,
    EngineStateError,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

MIB = 1 << 20
SLACK = 64 * MIB
"""What a first use of a kernel may take for good."""


def wide_plans(nbytes: int = MIB, rows: int = 4) -> CachePlanSet:
    """``rows`` MiB a block unless told otherwise."""
    ids = tuple(range(rows))
    spec = CacheTensorSpec(name="rows", shape=(nbytes,), dtype="uint8", row_ids=ids, consumer_rows=ids)
    return plan_set([spec], tokens=1)


def open_stable(plans: CachePlanSet, num_blocks: int, num_host: int = 0) -> CacheEngine[torch.Tensor]:
    return CacheEngine(
        plans,
        num_blocks,
        backend=CudaTritonBackend(),
        copies=registry().copy_infos(),
        device="cuda:0",
        host_counts=num_host,
        stable_addresses=True,
    )


def addresses(engine: CacheEngine[torch.Tensor]) -> list[int]:
    return [pool.data_ptr() for pool in engine.allocation().pools]


def free_now() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(0)[0]


def test_torch_uses_the_mapped_memory_where_it_is():
    with open_stable(plan_set(specs_of()), 40) as engine:
        allocation = engine.allocation()
        first = allocation.pools[0]

        assert first.data_ptr() == allocation.range.address
        assert first.device == torch.device("cuda", 0)
        assert not any(bool(pool.any()) for pool in allocation.pools)
        fill(engine)
        assert bool(first.any())
        before = engine.stats().groups[0].reserved_nbytes
        assert before == allocation.range.nbytes
        assert before % (2 * MIB) == 0


@pytest.mark.parametrize("pages", [1, 2])
def test_copies_and_zeroing_work_on_it(pages):
    with open_stable(plan_set(specs_of(), pages), 40) as engine:
        fill(engine)
        chosen = distinct(24, 40)
        src, dst = chosen[:12], chosen[12:]
        wanted = [pool.clone() for pool in blocks_of(engine)]
        for pool in wanted:
            pool[:, dst] = pool[:, src]
            pool[:, src[:3]] = 0

        engine.copy_blocks(BlockPairs(src, dst))
        engine.zero_blocks(src[:3])

        assert same(blocks_of(engine), wanted)
        assert engine.stats().groups[0].copies[0].path == "cuda:fused"


@pytest.mark.parametrize("way", ["staged", "pitched", "direct", ""])
def test_swaps_work_on_it_before_and_after_a_sleep(way, monkeypatch):
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    with open_stable(wide_plans(rows=3), 40, 30) as engine:
        fill(engine)
        wanted = [pool[:, [3, 8, 9]].clone() for pool in blocks_of(engine)]

        engine.swap_out({3: 5, 8: 6, 9: 20}).wait()
        engine.sleep(2)
        engine.wake()
        engine.swap_in({5: 0, 6: 31, 20: 30}).wait()

        assert same([pool[:, [0, 31, 30]] for pool in blocks_of(engine)], wanted)
        assert not any(bool(pool[:, [3, 8, 9]].any()) for pool in blocks_of(engine))


@pytest.mark.parametrize("level", [1, 2])
def test_a_captured_graph_survives_a_sleep_with_new_contents(level):
    with open_stable(plan_set(specs_of()), 20) as engine:
        fill(engine)
        keys, at, generation = engine.block_caches.layer("k_cache", 1), addresses(engine), engine.generation
        keys.copy_(torch.randn(keys.shape, device="cuda"))
        ids = torch.tensor([[2, 3, -1], [12, 13, -1]], device="cuda")
        read = torch.zeros_like(keys[12])
        engine.copy_blocks_on_device(ids)  # compiled outside the capture
        read.copy_(keys[12] * 2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            engine.copy_blocks_on_device(ids)
            read.copy_(keys[12] * 2)
        before = [pool.clone() for pool in blocks_of(engine)]

        engine.sleep(level)
        engine.wake()

        assert (addresses(engine), engine.generation) == (at, generation)
        assert engine.block_caches.layer("k_cache", 1) is keys
        if level == 1:
            assert torch.equal(keys[2], keys[12])
            assert same([pool[:, :2] for pool in payload(engine)], [pool[:, :2] for pool in payload_of(engine, before)])
        else:
            assert not any(bool(pool.any()) for pool in engine.allocation().pools)
        for value in (3.0, 5.0):
            keys[2] = value
            graph.replay()
            torch.cuda.synchronize()
            assert bool((read == 2 * value).all())
            assert bool((keys[12] == value).all())


def payload(engine):
    """Every row view, as bytes: padding is not kept by a sleep."""
    return [engine.block_caches[name].contiguous().view(torch.uint8) for name in engine.block_caches]


def payload_of(engine, pools):
    """The same rows of pools that were cloned."""
    allocation = engine.allocation()
    flat = torch.cat(
        [old.reshape(pool.shape).contiguous().reshape(-1) for old, pool in zip(pools, allocation.pools, strict=True)]
    )
    adopted = engine.backend.adopt(flat, allocation.layout, allocation.num_entries)
    views = [engine.backend.view(adopted, index, spec) for index, spec in enumerate(engine.plans.only().specs)]
    return [view.contiguous().view(torch.uint8) for view in views]


@pytest.mark.parametrize("open_engine", [open_stable, open_gpu], ids=["stable", "usual"])
def test_the_device_has_its_memory_back_while_it_sleeps(open_engine):
    with open_engine(wide_plans(), 512) as engine:  # 2 GiB
        awake = free_now()
        nbytes = engine.stats().groups[0].reserved_nbytes

        engine.sleep(2)
        assert free_now() - awake >= nbytes
        engine.wake()

        assert abs(free_now() - awake) <= SLACK
    assert free_now() - awake >= nbytes


@pytest.mark.parametrize("open_engine", [open_stable, open_gpu], ids=["stable", "usual"])
def test_a_wake_without_memory_is_refused_and_loses_nothing(open_engine):
    with open_engine(wide_plans(), 1024) as engine:  # 4 GiB
        fill(engine)
        wanted = [pool[:, [0, 511, 1023]].clone() for pool in blocks_of(engine)]
        engine.sleep(live=[0, 511, 1023])
        taken = torch.empty(free_now() - 2048 * MIB, dtype=torch.uint8, device="cuda")

        with pytest.raises(AllocationError, match=r"wake\(\) needs \d+ bytes on cuda:0, where \d+ are free") as caught:
            engine.wake()

        assert caught.value.needed_nbytes == 4096 * MIB
        assert caught.value.free_nbytes < 4096 * MIB
        assert engine.sleep_level == 1
        del taken, caught
        torch.cuda.empty_cache()
        engine.wake()
        assert same([pool[:, [0, 511, 1023]] for pool in blocks_of(engine)], wanted)


@pytest.mark.parametrize("open_engine", [open_stable, open_gpu], ids=["stable", "usual"])
def test_twenty_cycles_take_no_more_memory(open_engine):
    with open_engine(wide_plans(), 64, 8) as engine:
        fill(engine)
        wanted = [pool.clone() for pool in blocks_of(engine)]
        engine.sleep()  # what copies keep for good, such as staging memory, is there from now on
        engine.wake()
        before = free_now()

        for _ in range(20):
            engine.sleep()
            engine.wake()

        assert same(blocks_of(engine), wanted)
        assert before - free_now() <= SLACK


@pytest.mark.parametrize("open_engine", [open_stable, open_gpu], ids=["stable", "usual"])
def test_asleep_nothing_is_handed_out(open_engine):
    with open_engine(wide_plans(), 8, 4) as engine:
        engine.sleep(2)
        for use in (
            lambda: engine.block_caches.row("rows", 0),
            lambda: engine.copy_blocks({0: 1}),
            lambda: engine.copy_blocks_on_device(torch.tensor([[0], [1]], device="cuda")),
            lambda: engine.swap_out({0: 1}),
            lambda: engine.zero_blocks([0]),
            engine.allocation,
        ):
            with pytest.raises(EngineStateError, match="asleep"):
                use()
        engine.wake()
        assert engine.copy_blocks({0: 1}) is not None


def test_without_stable_addresses_the_generation_tells():
    with open_gpu(plan_set(specs_of()), 20) as engine:
        fill(engine)
        wanted = [view.clone() for view in payload(engine)]

        engine.sleep()
        engine.wake()

        assert engine.generation == 2
        assert same(payload(engine), wanted)


def test_a_tensor_that_outlives_the_engine_keeps_its_memory():
    before = free_now()
    engine = open_stable(wide_plans(), 64)  # 256 MiB
    row = engine.block_caches.row("rows", 1)
    row.fill_(7)
    engine.close()

    assert bool((row == 7).all())
    del row
    assert before - free_now() <= SLACK


def test_closing_while_asleep_gives_the_addresses_back():
    before = free_now()
    for _ in range(5):
        engine = open_stable(wide_plans(), 64)
        engine.sleep(2)
        engine.close()

    assert before - free_now() <= SLACK


def test_a_group_without_bytes_sleeps_too():
    with open_stable(wide_plans(), 0) as engine:
        engine.sleep()
        engine.wake()
        assert engine.generation == 1


def test_more_than_there_is_is_refused_and_nothing_stays():
    before = free_now()
    backend = CudaTritonBackend()
    plan = wide_plans().only()
    num_blocks = torch.cuda.mem_get_info(0)[1] // (4 * MIB) + 1

    with pytest.raises(AllocationError, match=r"in pages of 2097152, where \d+ bytes are free"):
        backend.allocate_stable(plan.layout, num_blocks, DeviceSpec.parse("cuda:0"))

    assert before - free_now() <= SLACK


def test_work_in_another_inference_mode_reads_and_writes_it():
    with torch.inference_mode():
        engine = open_stable(plan_set(specs_of()), 8)
        engine.sleep(2)
        engine.wake()
    engine.block_caches.layer("k_cache", 0).fill_(1)

    assert bool((engine.block_caches.layer("k_cache", 0) == 1).all())
    engine.close()
