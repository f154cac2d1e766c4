"""Engines whose addresses outlast a sleep, on a driver played in host memory: all but the GPU's own part."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from cachecore_cuda_triton import backend as backend_module
from cachecore_cuda_triton import stable_memory, virtual_memory
from cachecore_cuda_triton.backend import CudaTritonBackend
from cachecore_cuda_triton.stable_memory import StableAllocation
from engines import plan_set, specs_of
from torch import Tensor
from virtual_driver import PAGE, VirtualDriver

from cachecore import (
    AllocationError,
    BlockCacheGeometry,
    BlockCachePlan,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    DeviceSpec,
    EngineStateError,
    LayoutHints,
    PluginError,
    StandardLayoutPolicy,
    plan_from_specs,
)

CUDA = DeviceSpec.parse("cuda:0")


class OnHost(CudaTritonBackend):
    """No page-locked memory without a GPU."""

    def capabilities(self) -> Mapping[str, str | None]:
        """As on a GPU."""
        return {**super().capabilities(), "pinned_host": "there is no GPU", "async_copy": "there is no GPU"}


def over_host(owner: Any, device: torch.device) -> Tensor:
    """A tensor over the played addresses, which keeps ``owner`` as torch's own does."""
    (nbytes,), (address, _) = owner.__cuda_array_interface__["shape"], owner.__cuda_array_interface__["data"]
    held = (ctypes.c_ubyte * nbytes).from_address(address)
    held.owner = owner
    return torch.frombuffer(held, dtype=torch.uint8)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> VirtualDriver:
    """Virtual memory of 16 MiB, and torch without a device."""
    played = VirtualDriver()
    monkeypatch.setattr(virtual_memory, "libcuda", lambda: played)
    monkeypatch.setattr(backend_module, "why_no_virtual_memory", lambda: virtual_memory.why_no_virtual_memory(played))
    monkeypatch.setattr(stable_memory, "tensor_at", over_host)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: played.calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: played.calls.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (played.capacity - played.taken, played.capacity))
    return played


def opened(plans: CachePlanSet, counts: int = 8, host: int = 4, **more: Any) -> CacheEngine[Tensor]:
    options = {"backend": OnHost(), "copies": (), "device": CUDA, "stable_addresses": True, **more}
    return CacheEngine(plans, counts, host_counts=host, **options)


def one_pool(nbytes: int, *, base_alignment: int = 512) -> BlockCachePlan:
    spec = CacheTensorSpec(name="rows", shape=(nbytes,), dtype="uint8", row_ids=(0,), consumer_rows=(0,))
    hints = LayoutHints(base_alignment=base_alignment)
    return plan_from_specs([spec], BlockCacheGeometry(1), StandardLayoutPolicy(), hints=hints)


def addresses(engine: CacheEngine[Tensor]) -> list[int]:
    return [pool.data_ptr() for pool in engine.allocation().pools]


def fill(engine: CacheEngine[Tensor]) -> list[Tensor]:
    for pool in engine.allocation().pools:
        pool.random_(0, 255)
    return [row.clone() for name in engine.block_caches for row in rows(engine, name)]


def rows(engine: CacheEngine[Tensor], name: str) -> list[Tensor]:
    return [engine.block_caches.layer(name, layer).view(torch.uint8) for layer in range(3)]


def same(engine: CacheEngine[Tensor], wanted: list[Tensor]) -> bool:
    found = [row for name in engine.block_caches for row in rows(engine, name)]
    return all(torch.equal(one, two.view(torch.uint8)) for one, two in zip(found, wanted, strict=True))


def test_all_pools_stand_in_one_range_and_its_last_page_is_counted(driver: VirtualDriver) -> None:
    plans = plan_set(specs_of())
    with opened(plans) as engine:
        allocation = engine.allocation()
        nbytes = plans.only().reserved_nbytes(8)

        assert isinstance(allocation, StableAllocation)
        assert len(driver.reserved) == 1
        assert len(allocation.pools) > 1
        assert sum(buffer.numel() for buffer in allocation.buffers) == nbytes
        assert engine.stats().groups[0].reserved_nbytes == driver.taken == nbytes + allocation.excess_nbytes
        assert allocation.excess_nbytes < PAGE
        ends = [pool.data_ptr() + pool.numel() for pool in allocation.pools]
        assert all(end <= start for end, start in zip(ends, addresses(engine)[1:], strict=False))
    assert (driver.taken, driver.reserved) == (0, {})


@pytest.mark.parametrize("base_alignment", [512, 4096, 2 * PAGE])
def test_pools_are_aligned_as_the_layout_says(driver: VirtualDriver, base_alignment: int) -> None:
    plans = CachePlanSet((one_pool(700, base_alignment=base_alignment),), "cuda", "cuda-triton")

    with opened(plans) as engine:
        assert all(address % base_alignment == 0 for address in addresses(engine))


def test_fresh_and_woken_memory_is_zero(driver: VirtualDriver) -> None:
    with opened(plan_set(specs_of())) as engine:
        assert not any(bool(pool.any()) for pool in engine.allocation().pools)
        fill(engine)
        engine.sleep(2)
        engine.wake()

        assert not any(bool(pool.any()) for pool in engine.allocation().pools)


@pytest.mark.parametrize("level", [1, 2])
def test_tensors_addresses_and_generation_outlast_a_sleep(driver: VirtualDriver, level: int) -> None:
    with opened(plan_set(specs_of())) as engine:
        wanted, at, row = fill(engine), addresses(engine), engine.block_caches.layer("k_cache", 1)

        engine.sleep(level)
        assert driver.taken == 0
        with pytest.raises(EngineStateError, match="asleep"):
            engine.block_caches.layer("k_cache", 1)
        engine.wake()

        assert (addresses(engine), engine.generation) == (at, 1)
        assert engine.block_caches.layer("k_cache", 1) is row
        assert same(engine, wanted) is (level == 1)


def test_an_allocation_that_is_away_is_not_used(driver: VirtualDriver) -> None:
    backend = OnHost()
    layout = one_pool(700).layout
    allocation = backend.allocate_stable(layout, 8, CUDA)
    backend.release(allocation)
    backend.release(allocation)

    for use in (
        lambda: backend.read(allocation, 0, 0, 1),
        lambda: backend.write(allocation, 0, 0, b"x"),
        lambda: backend.regions(allocation),
    ):
        with pytest.raises(EngineStateError, match="freed"):
            use()
    assert backend.restore(allocation) is allocation
    assert backend.read(allocation, 0, 0, 1) == b"\0"
    backend.free(allocation)
    backend.free(allocation)
    assert (driver.taken, driver.reserved) == (0, {})


def test_without_memory_it_stays_asleep_with_its_contents(driver: VirtualDriver) -> None:
    plans = plan_set(specs_of())
    with opened(plans) as engine:
        wanted, taken = fill(engine), driver.taken
        engine.sleep()
        driver.capacity = taken - 1

        with pytest.raises(
            AllocationError, match=rf"wake\(\) needs .* where {taken - 1} are free .*in pages of {PAGE}"
        ):
            engine.wake()

        assert (driver.taken, engine.sleep_level) == (0, 1)
        assert "empty_cache" in driver.calls
        driver.capacity = taken
        engine.wake()
        assert same(engine, wanted)


def test_an_engine_that_does_not_fit_keeps_no_addresses(driver: VirtualDriver) -> None:
    plans = plan_set(specs_of())
    driver.capacity = plans.only().reserved_nbytes(8)  # without room for the rest of the last page

    with pytest.raises(AllocationError, match=r"bytes for 8 entries on cuda:0, in pages of .*Use fewer blocks"):
        opened(plans)

    gc.collect()
    assert (driver.taken, driver.reserved) == (0, {})


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess"])
def test_a_driver_that_fails_at_wake_leaves_it_asleep(driver: VirtualDriver, call: str) -> None:
    with opened(plan_set(specs_of())) as engine:
        wanted = fill(engine)
        engine.sleep()
        driver.fail = call

        with pytest.raises(EngineStateError, match=f"{call} of .* failed with driver error 700"):
            engine.wake()

        assert (driver.taken, engine.sleep_level) == (0, 1)
        driver.fail = None
        engine.wake()
        assert same(engine, wanted)


def test_a_device_that_fails_while_memory_is_zeroed_leaves_it_asleep(
    driver: VirtualDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: object = None) -> None:
        raise RuntimeError("an illegal memory access")

    with opened(plan_set(specs_of())) as engine:
        wanted = fill(engine)
        engine.sleep()
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(torch.cuda, "synchronize", broken)

            with pytest.raises(PluginError, match="an illegal memory access"):
                engine.wake()

        assert (driver.taken, engine.sleep_level) == (0, 1)
        engine.wake()
        assert same(engine, wanted)


@pytest.mark.parametrize("asleep", [False, True])
def test_closing_gives_memory_and_addresses_back(driver: VirtualDriver, asleep: bool) -> None:
    engine = opened(plan_set(specs_of()))
    if asleep:
        engine.sleep()

    engine.close()

    assert (driver.taken, driver.reserved) == (0, {})


def test_a_tensor_that_outlives_the_engine_keeps_its_memory(driver: VirtualDriver) -> None:
    # as with torch's own memory: no use after free
    engine = opened(plan_set(specs_of()))
    row = engine.block_caches.layer("k_cache", 1)
    row.fill_(1)
    engine.close()

    assert len(driver.reserved) == 1
    assert bool((row == 1).all())
    driver.calls.clear()
    del row
    assert (driver.taken, driver.reserved) == (0, {})
    assert driver.calls[:2] == ["synchronize", "cuMemUnmap"]  # the driver does not wait for kernels


def test_twenty_cycles_take_no_more_memory(driver: VirtualDriver) -> None:
    with opened(plan_set(specs_of())) as engine:
        wanted, taken = fill(engine), driver.taken
        for _ in range(20):
            engine.sleep()
            engine.wake()
        assert same(engine, wanted)
        assert (driver.taken, len(driver.reserved), driver.handles) == (taken, 1, {})


def test_where_the_driver_cannot_it_is_refused_with_the_reason(driver: VirtualDriver) -> None:
    driver.attributes[102] = 0

    with pytest.raises(
        EngineStateError, match=r"backend 'cuda-triton' cannot keep addresses .*: the first CUDA device"
    ):
        opened(plan_set(specs_of()))
    with pytest.raises(EngineStateError, match="cannot keep addresses over sleep: the first CUDA device does not"):
        OnHost().allocate_stable(one_pool(700).layout, 8, CUDA)

    assert driver.reserved == {}


def test_memory_that_torch_copied_is_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    class Owner:
        def __init__(self) -> None:
            self.__cuda_array_interface__ = {"data": (0x1234, False)}

    monkeypatch.setattr(torch, "as_tensor", lambda owner, device: torch.zeros(1))

    with pytest.raises(AllocationError, match="copied the memory at 0x1234"):
        stable_memory.tensor_at(Owner(), torch.device("cuda", 0))
