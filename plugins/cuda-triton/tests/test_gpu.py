"""On a real GPU: every byte, streams, graphs, far offsets. ``tox run -e cuda-triton-gpu`` or ``pytest -m gpu``."""

from __future__ import annotations

import pytest
import torch
from engines import blocks_of, distinct, fill, open_gpu, plan_set, same, specs_of

from cachecore import BlockPairs, CacheTensorSpec

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def wide_spec(name: str, nbytes: int, rows: int) -> CacheTensorSpec:
    ids = tuple(range(rows))
    return CacheTensorSpec(name=name, shape=(nbytes,), dtype="uint8", row_ids=ids, consumer_rows=ids)


@pytest.mark.parametrize("pages", [1, 2, 4])
@pytest.mark.parametrize("ids", ["host", "device"])
def test_copy_moves_every_byte_and_no_other(pages, ids):
    with open_gpu(plan_set(specs_of(), pages), 40) as engine:
        fill(engine)
        chosen = distinct(24, 40)
        src, dst = chosen[:12], chosen[12:]
        wanted = [pool.clone() for pool in blocks_of(engine)]
        for pool in wanted:
            pool[:, dst] = pool[:, src]

        if ids == "host":
            engine.copy_blocks(BlockPairs(src, dst)).synchronize()
        else:
            engine.copy_blocks_on_device(torch.tensor([[*src, -1, 3], [*dst, 5, -1]], device="cuda"))

        assert same(blocks_of(engine), wanted)
        assert engine.stats().groups[0].copies[0].path == "cuda:fused"


@pytest.mark.parametrize("way", ["staged", "pitched", "direct", ""])
@pytest.mark.parametrize("pages", [1, 2, 4])
def test_swap_out_and_in_is_the_identity(way, pages, monkeypatch):
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    with open_gpu(plan_set(specs_of(), pages), 40, 30) as engine:
        fill(engine)
        chosen, host = distinct(36, 40), distinct(18, 30, seed=1)
        away, back = chosen[:18], chosen[18:]
        wanted = [pool.clone() for pool in blocks_of(engine)]
        rows = [pool[:, away].clone() for pool in wanted]

        engine.swap_out(BlockPairs(away, host)).wait()
        for pool in blocks_of(engine):
            pool[:, away] = 0xA5
        engine.swap_in(BlockPairs(host, back)).wait()

        views = [engine.block_caches[name] for name in engine.block_caches]
        kept = open_rows(engine, wanted)
        for view, old in zip(views, kept, strict=True):
            step = engine.plans.only().pages_per_unit
            for gone, here in zip(away, back, strict=True):
                now, then = view[:, here * step : (here + 1) * step], old[:, gone * step : (gone + 1) * step]
                assert torch.equal(as_integers(now), as_integers(then))
        untouched = [block for block in range(40) if block not in chosen]
        assert same([p[:, untouched] for p in blocks_of(engine)], [p[:, untouched] for p in wanted])
        assert len(rows) == len(wanted)
        if way:
            assert {copy.path for copy in engine.stats().groups[0].copies[1:]} == {f"cuda:{way}"}


def as_integers(view: torch.Tensor) -> torch.Tensor:
    """Bit patterns: random bytes are NaN now and then, which equals nothing."""
    return view.contiguous().view(torch.uint8)


def open_rows(engine, wanted):
    """Whole tensors as they were: the clones put into the pools' shapes and viewed the same way."""
    allocation = engine.allocation()
    clones = [old.reshape(pool.shape).contiguous() for old, pool in zip(wanted, allocation.pools, strict=True)]
    flat = torch.cat([clone.reshape(-1) for clone in clones])
    adopted = engine.backend.adopt(flat, allocation.layout, allocation.num_entries)
    plan = engine.plans.only()
    return [engine.backend.view(adopted, index, spec) for index, spec in enumerate(plan.specs)]


def test_a_captured_copy_is_replayed_with_other_ids():
    with open_gpu(plan_set(specs_of()), 20) as engine:
        fill(engine)
        ids = torch.tensor([[0, 1, -1], [10, 11, -1]], device="cuda")
        engine.copy_blocks_on_device(ids)  # compiled outside the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            engine.copy_blocks_on_device(ids)
        wanted = [pool.clone() for pool in blocks_of(engine)]
        for pool in wanted:
            pool[:, [12, 13, 14]] = pool[:, [2, 3, 4]]

        ids.copy_(torch.tensor([[2, 3, 4], [12, 13, 14]]))
        graph.replay()

        assert same(blocks_of(engine), wanted)


def test_more_pairs_than_one_grid_axis_holds():
    num = 70_000
    with open_gpu(plan_set([wide_spec("index", 132, 2)], tokens=1), 2 * num) as engine:
        fill(engine)
        wanted = [pool.clone() for pool in blocks_of(engine)]
        for pool in wanted:
            pool[:, num:] = pool[:, :num]

        engine.copy_blocks(BlockPairs(range(num), range(num, 2 * num)))

        assert same(blocks_of(engine), wanted)


@pytest.mark.parametrize("way", ["staged", "pitched", "direct"])
def test_offsets_beyond_32_bits(way, monkeypatch):
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    # 3 rows x 3,000 blocks x 1 MiB: the second row starts at 3.1e9 bytes, beyond 2^31; the third at 6.3e9, beyond 2^32.
    with open_gpu(plan_set([wide_spec("far", 1 << 20, 3)], tokens=1), 3000, 4) as engine:
        (pool,) = blocks_of(engine)
        for block in (2997, 2998):
            pool[:, block].random_(0, 255)
        wanted = pool[:, [2997, 2998]].clone()

        engine.copy_blocks({2997: 2999, 2998: 5})
        engine.swap_out({2999: 3, 5: 0}).wait()
        pool[:, [2999, 5]] = 0
        engine.swap_in({3: 1, 0: 2996}).wait()

        assert torch.equal(pool[:, [1, 2996]], wanted)
        assert not pool[:, [0, 2, 6, 2995]].any()


@pytest.mark.parametrize("way", ["staged", "pitched", "direct"])
def test_swap_out_sees_a_delayed_producer(way, monkeypatch):
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    with open_gpu(plan_set([wide_spec("rows", 4096, 8)], tokens=1), 16, 8) as engine:
        engine.swap_out({0: 0}).synchronize()
        pool = engine.allocation().pools[0]

        torch.cuda._sleep(50_000_000)  # some 25 ms before the write
        pool[:, 3] = 0x77
        work = engine.swap_out({3: 5})
        assert not work.done()
        work.synchronize()

        host = engine.allocation(host=True).pools[0]
        assert bool((host[:, 5] == 0x77).all())


@pytest.mark.parametrize("way", ["staged", "pitched", "direct"])
def test_swap_in_does_not_overtake_a_delayed_reader(way, monkeypatch):
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    with open_gpu(plan_set([wide_spec("rows", 4096, 8)], tokens=1), 16, 8) as engine:
        engine.allocation(host=True).pools[0].fill_(0x11)
        engine.swap_in({0: 0}).synchronize()
        pool = engine.allocation().pools[0]
        pool[:, 3] = 0x22
        torch.cuda.synchronize()

        torch.cuda._sleep(50_000_000)
        read = pool[:, 3].clone()
        work = engine.swap_in({1: 3})
        work.wait()
        after = pool[:, 3].clone()
        torch.cuda.synchronize()

        assert bool((read == 0x22).all())
        assert bool((after == 0x11).all())


def test_host_blocks_in_flight_are_named_until_they_arrive():
    with open_gpu(plan_set([wide_spec("rows", 4096, 8)], tokens=1), 16, 8) as engine:
        torch.cuda._sleep(50_000_000)
        work = engine.swap_out({0: 2, 1: 7})

        assert engine.host_blocks_in_flight() == {2, 7}
        work.synchronize()
        assert engine.host_blocks_in_flight() == frozenset()


def test_zero_clears_the_blocks_named_and_no_other():
    with open_gpu(plan_set(specs_of(), pages=2), 12) as engine:
        fill(engine)
        wanted = [pool.clone() for pool in blocks_of(engine)]
        for pool in wanted:
            pool[:, [2, 9, 11]] = 0

        engine.zero_blocks([9, 2, 11])

        assert same(blocks_of(engine), wanted)


def test_page_locked_memory_is_exact_and_given_back():
    nbytes = 0
    for _ in range(5):
        with open_gpu(plan_set([wide_spec("rows", 1 << 20, 3)], tokens=1), 1, 100) as engine:
            host = engine.allocation(host=True)
            nbytes = host.buffers[0].numel()
            assert host.memory_kind == "host:pinned"
            assert host.buffers[0].untyped_storage().nbytes() == nbytes
    # 3 rows x 1 MiB x 100 blocks, aligned by page anyway
    assert nbytes == 3 * (1 << 20) * 100


def test_swap_piece_by_piece_is_counted_in_the_path():
    import subprocess
    import sys

    code = (
        "import os; os.environ['CACHECORE_CUDA_MEMCPY']='each'\n"
        "from engines import *\n"
        "e = open_gpu(plan_set(specs_of()), 8, 4); fill(e); e.swap_out({1: 2}).synchronize()\n"
        "e.swap_in({2: 5}).synchronize(); print(e.stats().groups[0].copies[1].path)\n"
        "assert same([p[:, 5] for p in blocks_of(e)][2:], [p[:, 1] for p in blocks_of(e)][2:])\n"
    )
    import os
    from pathlib import Path

    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])}
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**env, "CACHECORE_CUDA_SWAP": "pitched"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == "cuda:pitched:memcpy-each"
