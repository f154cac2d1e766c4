"""Swaps where only a GPU shows it: all ways and layouts, registrations, and staging of several engines."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cachecore_cuda_triton import calibration, driver, pinned, staging, swap
from cachecore_torch_default.testing import (
    KindPolicy,
    draw_swaps,
    engine_and_oracle,
    plan_sets,
    tier_contents,
)
from engines import open_gpu, plan_set, registry
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecore import BlockPairs, CacheEngine, CachePlanSet, CacheTensorSpec, LayoutHints

pytestmark = pytest.mark.gpu

WAYS = ("staged", "pitched", "direct", "pitched+staged")


def rows_spec(rows: int, nbytes: int, name: str = "rows") -> list[CacheTensorSpec]:
    ids = tuple(range(rows))
    return [CacheTensorSpec(name=name, shape=(nbytes,), dtype="uint8", row_ids=ids, consumer_rows=ids)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way, whatever calibration would choose; of the mixed one, rows from 100 bytes on go pitched."""
    if request.param == "pitched+staged":

        def mixed(device: torch.device, direction: str, runs: calibration.Runs, hint: str) -> calibration.Choice:
            return calibration.Choice("pitched+staged", tuple(length >= 100 for length, _ in runs), 0, "for a test")

        monkeypatch.setattr(swap, "choose", mixed)
    else:
        monkeypatch.setenv("CACHECORE_CUDA_SWAP", request.param)
    return str(request.param)


@pytest.fixture(params=["batch", "each"])
def memcpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both driver calls."""
    if request.param == "each":
        monkeypatch.setenv("CACHECORE_CUDA_MEMCPY", "each")
    driver._batched.cache_clear()
    yield str(request.param)
    driver._batched.cache_clear()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(drawn=plan_sets(), data=st.data())
def test_both_directions_equal_the_byte_backend(
    gpu: torch.device, way: str, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    from cachecore_cuda_triton import CudaTritonBackend

    plans, policy = drawn
    backend = CudaTritonBackend()
    backend.policy = policy
    real, oracle = engine_and_oracle(plans, backend, gpu, registry().copy_infos())
    out, back = draw_swaps(data.draw)

    for engine in (real, oracle):
        engine.swap_out(out)
        engine.swap_in(back).synchronize()

    assert tier_contents(real, host=True) == tier_contents(oracle, host=True)
    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)
    assert real.stats().num_fallback_calls == 0
    real.close()


def test_a_block_goes_out_and_comes_back(gpu: torch.device, way: str, memcpy: str) -> None:
    # 300 blocks of 1 MiB and a little: more than the staging ring holds at once
    engine = open_gpu(plan_set([*rows_spec(64, 16384), *rows_spec(5, 48, "short")], tokens=1), 600, 300)
    for pool in engine.allocation().pools:
        pool.random_(0, 256)
    rows = [engine.block_caches.row(name, row) for name, count in (("rows", 64), ("short", 5)) for row in range(count)]
    kept = [row[:300].clone() for row in rows]
    host = random.Random(1).sample(range(300), 300)

    engine.swap_out(BlockPairs(range(300), host)).wait()
    for row in rows:
        row[:300] = 0
    engine.swap_in(BlockPairs(host, range(599, 299, -1))).synchronize()

    for row, was in zip(rows, kept, strict=True):
        assert torch.equal(row[300:].flip(0), was)
        assert not row[:300].any()
    assert way in {copy.direction: copy.path for copy in engine.stats().groups[0].copies}["swap_out"]
    engine.close()


@pytest.mark.parametrize("pages", [1, 2])
def test_a_block_that_is_one_run_goes_whole(
    gpu: torch.device, pages: int, memcpy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 40 blocks of 1.2 MiB: some are queued before the rest
    monkeypatch.delenv("CACHECORE_CUDA_SWAP", raising=False)
    rates = defaultdict(lambda: 60e9)
    monkeypatch.setattr(calibration, "calibration", lambda *_: calibration.Calibration(50e9, 50e9, {}, rates, 0))
    specs = [*rows_spec(64, 16384 // pages), *rows_spec(5, 48, "short")]
    plans = plan_set(specs, pages, tokens=1, hints=LayoutHints(one_run_per_block=True))
    engine = open_gpu(plans, 80, 40)
    pool, host = engine.allocation().pools[0].random_(0, 256), engine.allocation(host=True).pools[0]
    kept = pool.view(80, -1)[:40].clone()
    there = random.Random(1).sample(range(40), 40)

    engine.swap_out(BlockPairs(range(40), there)).wait()
    pool.view(80, -1)[:40] = 0
    engine.swap_in(BlockPairs(there, range(79, 39, -1))).synchronize()

    assert torch.equal(pool.view(80, -1)[40:].flip(0), kept)
    assert torch.equal(host.view(40, -1)[there], kept.cpu())
    copies = {copy.direction: copy for copy in engine.stats().groups[0].copies}
    assert copies["swap_in"].path.startswith("cuda:whole")
    assert copies["swap_out"].path.startswith("cuda:whole")
    # Piece by piece is a fallback, and then that is the reason told.
    assert ("one run" if memcpy == "batch" else "CACHECORE_CUDA_MEMCPY") in copies["swap_out"].reason
    engine.close()


def test_two_threads_share_the_streams_of_a_direction(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", "staged")
    engines = [open_gpu(plan_set(rows_spec(8, 4096 * (1 + at)), tokens=1), 128, 64) for at in range(2)]
    kept = [engine.allocation().pools[0].random_(0, 256).clone() for engine in engines]
    torch.cuda.synchronize()

    def there_and_back(engine: CacheEngine[torch.Tensor], seed: int) -> None:
        for turn in range(50):
            host = random.Random(seed + turn).sample(range(64), 64)
            engine.swap_out(BlockPairs(range(64), host)).wait()
            engine.swap_in(BlockPairs(host, range(64, 128))).synchronize()

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(there_and_back, engine, 100 * at) for at, engine in enumerate(engines)]:
            done.result()

    for engine, was in zip(engines, kept, strict=True):
        assert torch.equal(engine.allocation().pools[0][:, 64:], was[:, :64])
        engine.close()


def test_larger_blocks_of_a_later_engine_leave_the_first_one_right(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", "staged")
    small = open_gpu(plan_set(rows_spec(4, 4096), tokens=1), 16, 8)
    large = open_gpu(plan_set(rows_spec(40, 4 << 20), tokens=1), 4, 2)  # blocks of 160 MiB, larger than any slot so far
    blocks = small.allocation().pools[0].random_(0, 256)
    kept = blocks.clone()
    taken = [torch.full((64 << 20,), 0x5A, dtype=torch.uint8, device=gpu) for _ in range(8)]

    large.swap_out(BlockPairs([0, 1], [0, 1])).synchronize()
    small.swap_out(BlockPairs(range(8), range(8))).wait()
    small.swap_in(BlockPairs(range(8), range(8, 16))).synchronize()

    assert torch.equal(blocks[:, 8:], kept[:, :8])
    assert all(bool((one == 0x5A).all()) for one in taken)
    small.close()
    large.close()


@pytest.mark.parametrize("stable", [False, True], ids=["usual", "stable"])
def test_staging_is_given_back_while_asleep_and_when_closed(
    gpu: torch.device, stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", "staged")
    engine = open_gpu(plan_set(rows_spec(8, 4096), tokens=1), 32, 16, stable_addresses=stable)
    pool = engine.allocation().pools[0].random_(0, 256)
    kept = pool.clone()
    rings = [staging.staging_ring(gpu, direction) for direction in ("in", "out")]
    engine.swap_out(BlockPairs(range(16), range(16))).wait()
    assert all(ring.nbytes >= 4 * staging.SLOT_NBYTES for ring in rings)

    engine.sleep()
    assert not any(ring.nbytes for ring in rings)
    engine.wake()
    engine.swap_in(BlockPairs(range(16), range(16, 32))).synchronize()

    pool = engine.allocation().pools[0]
    assert torch.equal(pool[:, 16:], kept[:, :16])
    assert torch.equal(pool[:, :16], kept[:, :16])
    engine.close()
    assert not any(ring.nbytes for ring in rings)


def test_a_limit_on_locked_memory_is_named(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachecore import AllocationError

    class Refusing:
        """The driver's answer when the system's limit is hit."""

        def cudaHostRegister(self, *_: int) -> int:  # noqa: N802  # the driver's name
            return 2

        def cudaHostUnregister(self, address: int) -> int:  # noqa: N802  # as above
            raise AssertionError("nothing was registered")

    monkeypatch.setattr(torch.cuda, "cudart", Refusing)

    with pytest.raises(AllocationError, match="ulimit -l"):
        pinned.pinned_pages(1 << 20, device=gpu)
