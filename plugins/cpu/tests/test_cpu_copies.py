"""Copies of the CPU backend: bytes worked by hand, and every byte against the core's ``ByteBackend``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from cachecore_cpu import CpuBackend, memmoves, strided
from cachecore_cpu.plugin import cachecore_register_block_copies
from cachecore_torch_default.plugin import cachecore_register_block_copies as generic_copies
from cachecore_torch_default.testing import (
    NUM_BLOCKS,
    NUM_HOST_BLOCKS,
    KindPolicy,
    draw_pairs,
    draw_swaps,
    engine_and_oracle,
    fill_tier,
    plan_sets,
    tier_contents,
)
from hypothesis import given
from hypothesis import strategies as st

from cachecore import (
    BlockCacheGeometry,
    BlockIndexError,
    BlockPairs,
    BlockPairsError,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    StandardLayoutPolicy,
    plan_from_specs,
)

COPIES = (*cachecore_register_block_copies(), *generic_copies())


WAYS = ("memmove", "strided", "as shipped")
each_way = pytest.mark.parametrize("way", WAYS)


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Send every run one way (``memmove`` has one thread), and keep few views."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        if way == "memmove":
            torch.set_num_threads(1)
        if way != "as shipped":
            patch.setattr(memmoves, "MEMMOVE_NBYTES", 1 if way == "memmove" else sys.maxsize)
            patch.setattr(strided, "_VIEWS_KEPT", 3)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@each_way
@given(drawn=plan_sets(), data=st.data())
def test_copy_and_swap_equal_the_byte_backend(
    way: str, num_threads: int, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    with forced(way):
        plans, policy = drawn
        real, oracle = engine_and_oracle(plans, CpuBackend(policy), "cpu", COPIES)
        copied = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)
        out, back = draw_swaps(data.draw)

        for engine in (real, oracle):
            engine.copy_blocks(copied)
            engine.swap_out(out)
            engine.swap_in(back)

    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)
    assert tier_contents(real, host=True) == tier_contents(oracle, host=True)


@each_way
@given(drawn=plan_sets(), data=st.data())
def test_swap_out_and_in_is_the_identity(way: str, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject) -> None:
    with forced(way):
        plans, policy = drawn
        real, _ = engine_and_oracle(plans, CpuBackend(policy), "cpu", COPIES)
        out = BlockPairs(data.draw(st.permutations(range(NUM_BLOCKS)))[:NUM_HOST_BLOCKS], range(NUM_HOST_BLOCKS))
        rows = [row for views in real.block_caches._specs.values() for view in views for row in view.rows]
        before = [row.clone() for row in rows]

        real.swap_out(out)
        real.zero_blocks(list(out.src))
        real.swap_in(BlockPairs(out.dst, out.src))

    for row, expected in zip(rows, before, strict=True):
        assert torch.equal(row.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))


@each_way
@given(drawn=plan_sets(), data=st.data())
def test_device_ids_ignore_padding(way: str, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject) -> None:
    with forced(way):
        plans, policy = drawn
        real, oracle = engine_and_oracle(plans, CpuBackend(policy), "cpu", COPIES)
        pairs = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)
        padded = data.draw(st.permutations([*pairs, (-1, -1), (-1, -1)]))

        real.copy_blocks_on_device(torch.tensor(padded).T)
        oracle.copy_blocks(pairs)

    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)


def plan_of(dtype: str, shape: tuple[int, ...], rows: int, geometry: BlockCacheGeometry) -> CachePlanSet:
    spec = CacheTensorSpec(name="index", shape=shape, dtype=dtype, alignment=16, row_ids=tuple(range(rows)))
    return CachePlanSet((plan_from_specs([spec], geometry, StandardLayoutPolicy()),), "cpu", "cpu")


def test_copy_moves_the_bytes_worked_by_hand() -> None:
    plans = plan_of("uint8", (4,), 2, BlockCacheGeometry(2, 1))
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        plans, 3, backend=CpuBackend(), copies=COPIES, device="cpu", host_counts=2
    )
    # One packed pool (2, 6, 16): 2 rows, 3 blocks of 2 pages, 4 bytes padded to 16; byte = 10*row + page.
    pool = engine.allocation().pools[0]
    pool.fill_(255)
    for row in range(2):
        for page in range(6):
            pool[row, page, :4] = 10 * row + page

    engine.copy_blocks({0: 2})
    engine.swap_out({2: 1})

    assert pool[:, :, 3].tolist() == [[0, 1, 2, 3, 0, 1], [10, 11, 12, 13, 10, 11]]
    assert (pool[:, :4, 4:] == 255).all()
    # Block-major, rows aligned to 16: row 0's two pages are bytes 0 to 7, row 1's are bytes 16 to 23.
    host = engine.allocation(host=True).pools[0]
    assert host.shape == (1, 2, 32)
    assert host[0, 1].tolist() == [0] * 4 + [1] * 4 + [0] * 8 + [10] * 4 + [11] * 4 + [0] * 8
    assert not host[0, 0].any()


@pytest.mark.parametrize("nbytes", [1 << 17, 1 << 18, 65536, 8448, 520])
def test_every_bit_pattern_survives_every_run_length(nbytes: int, num_threads: int) -> None:
    plans = plan_of("uint8", (nbytes,), 3, BlockCacheGeometry(1))
    engine: CacheEngine[torch.Tensor] = CacheEngine(plans, 24, backend=CpuBackend(), copies=COPIES, device="cpu")
    pool = engine.allocation().pools[0]
    pool.copy_(torch.randint(0, 256, pool.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(5)))
    # Signalling NaNs, were they read as floats: all exponent bits and the lowest mantissa bit.
    pool[:, 0].view(torch.int64)[:] = 0x7FF0000000000001
    expected = pool.clone()
    expected[:, 8:16] = expected[:, 0:8]  # neighbours
    expected[:, 20] = expected[:, 17]

    engine.copy_blocks({**{block: block + 8 for block in range(8)}, 17: 20})

    assert torch.equal(pool, expected)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_copy_keeps_eight_bit_floats_bit_for_bit(dtype: str) -> None:
    plans = plan_of(dtype, (4,), 2, BlockCacheGeometry(1))
    engine: CacheEngine[torch.Tensor] = CacheEngine(plans, 128, backend=CpuBackend(), copies=COPIES, device="cpu")
    row = engine.block_caches.layer("index", 1)
    every_byte = torch.arange(256, dtype=torch.uint8).view(64, 4)
    row[:64].view(torch.uint8).copy_(every_byte)

    engine.copy_blocks(BlockPairs(range(64), range(64, 128)))

    assert torch.equal(row[64:].view(torch.uint8), every_byte)


def test_copies_work_inside_and_outside_inference_mode(num_threads: int) -> None:
    plans = plan_of("float32", (1 << 16,), 4, BlockCacheGeometry(1))
    with torch.inference_mode():
        engine: CacheEngine[torch.Tensor] = CacheEngine(
            plans, 8, backend=CpuBackend(), copies=COPIES, device="cpu", host_counts=4
        )
    row = engine.block_caches.layer("index", 3)
    row[:4] += 1  # an inference tensor would refuse this

    with torch.inference_mode():
        engine.copy_blocks(BlockPairs(range(4), range(4, 8)))
    engine.swap_out(BlockPairs(range(4, 8), range(4)))
    engine.zero_blocks(range(8))
    with torch.inference_mode():
        engine.swap_in(BlockPairs(range(4), [7, 5, 3, 1]))

    assert row[:, 0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_wrong_ids_are_refused_and_change_nothing() -> None:
    plans = plan_of("uint8", (40,), 2, BlockCacheGeometry(1))
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        plans, 4, backend=CpuBackend(), copies=COPIES, device="cpu", host_counts=2
    )
    fill_tier(engine, 3, host=False)
    before = tier_contents(engine, host=False)

    for pairs, error in (
        ({0: 4}, BlockIndexError),
        ({-1: 0}, BlockIndexError),
        ({0: 1, 1: 2}, BlockPairsError),
        ([(0, 2), (1, 2)], BlockPairsError),
    ):
        with pytest.raises(error):
            engine.copy_blocks(pairs)
    with pytest.raises(BlockIndexError):
        engine.swap_out({0: 2})
    with pytest.raises(TypeError, match="int64"):
        engine.copy_blocks_on_device(torch.tensor([[0.0], [1.0]]))
    with pytest.raises(BlockPairsError, match=r"\(3, 2\)"):
        engine.copy_blocks_on_device(torch.zeros(3, 2, dtype=torch.int64))

    assert tier_contents(engine, host=False) == before


def test_path_says_which_ways_the_runs_go() -> None:
    specs = [
        CacheTensorSpec(name=name, shape=(nbytes,), dtype="uint8", row_ids=(0, 1), consumer_rows=(0, 1))
        for name, nbytes in (("long", 1 << 17), ("short", 4096))
    ]
    plans = CachePlanSet((plan_from_specs(specs, BlockCacheGeometry(1), StandardLayoutPolicy()),), "cpu", "cpu")
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        plans, 2, backend=CpuBackend(), copies=COPIES, device="cpu", host_counts=2
    )

    paths = {
        copy.direction: (copy.record, copy.path, copy.workspace_nbytes) for copy in engine.stats().groups[0].copies
    }

    assert set(paths) == {"copy", "swap_out", "swap_in"}
    assert set(paths.values()) == {("cpu-memory-speed", "cpu:strided+memmove", 0)}
