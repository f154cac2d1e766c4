"""Copies of torch-default: bytes worked by hand, and every byte against the core's ``ByteBackend``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cachecore_torch_default import GatherScatterCopy, StagedSwap, TorchBackend
from cachecore_torch_default.plugin import cachecore_register_block_copies
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
    BlockCopyInfo,
    BlockIndexError,
    BlockPairs,
    BlockPairsError,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    CopyContext,
    DeviceSpec,
    StandardLayoutPolicy,
    plan_from_specs,
)

COPIES = tuple(cachecore_register_block_copies())


def staged_always(src_is_host: bool) -> BlockCopyInfo:
    """The swap's own logic on any machine: both sides may be the host."""
    return BlockCopyInfo(
        "staged", 500, lambda src, dst: None, lambda context: StagedSwap(context, host_is_src=src_is_host)
    )


@given(drawn=plan_sets(), data=st.data())
def test_copy_and_swap_equal_the_byte_backend(
    device: DeviceSpec, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    real, oracle = engine_and_oracle(plans, TorchBackend(policy), device, COPIES)
    copied = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)
    out, back = draw_swaps(data.draw)

    for engine in (real, oracle):
        engine.copy_blocks(copied).synchronize()
        engine.swap_out(out).synchronize()
        engine.swap_in(back).synchronize()

    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)
    assert tier_contents(real, host=True) == tier_contents(oracle, host=True)
    assert real.stats().num_fallback_calls == 0


@pytest.mark.parametrize("swap_in", [False, True])
@given(drawn=plan_sets(), data=st.data())
def test_staged_swap_equals_the_byte_backend(
    swap_in: bool, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    real, oracle = engine_and_oracle(plans, TorchBackend(policy), "cpu", (staged_always(swap_in),))
    ends = (NUM_HOST_BLOCKS, NUM_BLOCKS) if swap_in else (NUM_BLOCKS, NUM_HOST_BLOCKS)
    pairs = draw_pairs(data.draw, *ends, disjoint=False)

    for engine in (real, oracle):
        (engine.swap_in if swap_in else engine.swap_out)(pairs).synchronize()

    assert tier_contents(real, host=not swap_in) == tier_contents(oracle, host=not swap_in)


@given(drawn=plan_sets(), data=st.data())
def test_device_ids_ignore_padding(
    device: DeviceSpec, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    real, oracle = engine_and_oracle(plans, TorchBackend(policy), device, COPIES)
    pairs = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)
    padded = data.draw(st.permutations([*pairs, (-1, -1), (-1, -1)]))

    real.copy_blocks_on_device(torch.tensor(padded, device=real.allocation().pools[0].device).T)
    oracle.copy_blocks(pairs)

    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)


def spec_of(nbytes: int) -> CacheTensorSpec:
    return CacheTensorSpec(name="wide", shape=(nbytes,), dtype="uint8", row_ids=(0, 1))


def small_plan(dtype: str = "uint8") -> CachePlanSet:
    spec = CacheTensorSpec(name="index", shape=(4,), dtype=dtype, alignment=8, row_ids=(0, 1), consumer_rows=(0, 1))
    return CachePlanSet(
        (plan_from_specs([spec], BlockCacheGeometry(2, 1), StandardLayoutPolicy()),), "cpu", "torch-default"
    )


def test_copy_moves_the_bytes_worked_by_hand(device: DeviceSpec) -> None:
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        small_plan(), 3, backend=TorchBackend(), copies=COPIES, device=device
    )
    # One row pool (2, 6, 8): 2 rows, 3 blocks of 2 pages, 4 bytes padded to 8; byte = 10*row + page, -1 in padding.
    pool = engine.allocation().pools[0]
    pool.fill_(255)
    for row in range(2):
        for page in range(6):
            pool[row, page, :4] = 10 * row + page

    engine.copy_blocks({0: 2}).synchronize()

    # Block 2 is pages 4 and 5; they now hold pages 0 and 1 of the same row.
    expected = [[0, 1, 2, 3, 0, 1], [10, 11, 12, 13, 10, 11]]
    assert pool[:, :, 0].tolist() == expected
    assert engine.block_caches["index"][:, :, 3].tolist() == expected
    assert (pool[:, :, 4:] == 255).all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_copy_keeps_eight_bit_floats_bit_for_bit(dtype: str, device: DeviceSpec) -> None:
    if not hasattr(torch, dtype):
        pytest.skip(f"torch {torch.__version__} has no {dtype}")
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        small_plan(dtype), 64, backend=TorchBackend(), copies=COPIES, device=device
    )
    row = engine.block_caches.row("index", 1)
    every_byte = torch.arange(256, dtype=torch.uint8).view(64, 4).to(row.device)
    row[:64].view(torch.uint8).copy_(every_byte)

    engine.copy_blocks(BlockPairs(range(32), range(32, 64))).synchronize()

    assert row.dtype == getattr(torch, dtype)
    assert torch.equal(row[64:].view(torch.uint8), every_byte)


def test_copy_and_views_work_inside_and_outside_inference_mode(device: DeviceSpec) -> None:
    with torch.inference_mode():
        engine: CacheEngine[torch.Tensor] = CacheEngine(
            small_plan(), 4, backend=TorchBackend(), copies=COPIES, device=device, host_counts=2
        )
    row = engine.block_caches.row("index", 0)
    row.add_(1)  # an inference tensor would refuse this

    with torch.inference_mode():
        row.add_(1)
        engine.copy_blocks({0: 1})
        engine.swap_out({1: 0}).wait()
    row.zero_()
    engine.swap_in({0: 3}).wait()

    assert not row.is_inference()
    assert row[:, 0].tolist() == [0, 0, 0, 0, 0, 0, 2, 2]


def test_wrong_ids_are_refused_and_change_nothing(device: DeviceSpec) -> None:
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        small_plan(), 4, backend=TorchBackend(), copies=COPIES, device=device
    )
    fill_tier(engine, 3, host=False)
    before = tier_contents(engine, host=False)
    here = engine.allocation().pools[0].device

    for pairs, error in (({0: 4}, BlockIndexError), ({-1: 0}, BlockIndexError), ({0: 1, 1: 2}, BlockPairsError)):
        with pytest.raises(error):
            engine.copy_blocks(pairs)
    with pytest.raises(TypeError, match="int64"):
        engine.copy_blocks_on_device([[0], [1]])
    with pytest.raises(TypeError, match="int64"):
        engine.copy_blocks_on_device(torch.tensor([[0], [1]], dtype=torch.int32, device=here))
    with pytest.raises(BlockPairsError, match=r"\(1, 2\)"):
        engine.copy_blocks_on_device(torch.tensor([[0, 1]], device=here))
    with pytest.raises(BlockPairsError, match="meta"):
        engine.copy_blocks_on_device(torch.empty(2, 1, dtype=torch.int64, device="meta"))

    assert tier_contents(engine, host=False) == before


def test_workspace_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch, device: DeviceSpec) -> None:
    from cachecore_torch_default import block_copy

    monkeypatch.setattr(block_copy, "WORKSPACE_NBYTES", 100)
    seen: list[int] = []
    real = torch.index_select

    def spy(*args: Any, out: torch.Tensor) -> torch.Tensor:
        seen.append(out.nbytes)
        return real(*args, out=out)

    monkeypatch.setattr(torch, "index_select", spy)
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        small_plan(), 64, backend=TorchBackend(), copies=COPIES, device=device
    )

    engine.copy_blocks(BlockPairs(range(32), range(63, 31, -1))).synchronize()

    # A block is 2 rows * 2 pages * 8 bytes = 32 bytes, so 3 blocks fit in 100 bytes and 32 take 11 rounds.
    assert (max(seen), len(seen)) == (96, 11)


def test_gather_scatter_serves_two_layouts_on_one_device(device: DeviceSpec) -> None:
    policy = KindPolicy("packed", "block-major")
    spec = CacheTensorSpec(name="k", shape=(3,), dtype="uint8", alignment=4, row_ids=(0, 1))
    plan = plan_from_specs([spec], BlockCacheGeometry(1), policy)
    backend = TorchBackend(policy)
    src, dst = backend.allocate(plan.layout, 2, device), backend.allocate(plan.host_layout, 2, device)
    backend.write(src, 0, 0, bytes(range(16)))  # (2 rows, 2 pages, 4): row 1 of page 1 is bytes 12, 13, 14

    from cachecore.transfer import block_segments

    segments = block_segments(plan.layout, 2, plan.host_layout, 2, 1)
    copy = GatherScatterCopy(CopyContext(backend, src, backend, dst, 2, 2, segments))
    copy(BlockPairs([1], [0])).synchronize()

    # Block-major rows of 3 bytes are aligned to 4: block 0 is row 0 of page 1, then row 1 of page 1.
    assert backend.read(dst, 0, 0, 8) == bytes([4, 5, 6, 0, 12, 13, 14, 0])


@pytest.mark.gpu
def test_swaps_are_ordered_after_queued_work_without_a_host_wait(accelerator: DeviceSpec) -> None:
    plans = CachePlanSet(
        (plan_from_specs([spec_of(1 << 20)], BlockCacheGeometry(1), StandardLayoutPolicy()),), "cpu", "torch-default"
    )
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        plans, 16, backend=TorchBackend(), copies=COPIES, device=accelerator, host_counts=16
    )
    row = engine.block_caches.layer("wide", 0)
    busy = torch.randn(4096, 4096, device=row.device)
    everything = BlockPairs(range(16), range(16))

    for value in range(1, 6):
        for _ in range(20):
            busy = (busy @ busy).clamp_(-1, 1)
        row.fill_(value)  # queued behind the products
        out = engine.swap_out(everything)
        out.wait()
        row.zero_()  # must not overtake the swap
        engine.swap_in(everything).wait()  # must not overtake the zeros, nor read before the host tier is whole
        assert row.view(-1)[:: 1 << 18].tolist() == [value] * 64
    out.synchronize()
    assert out.done()
    assert engine.host_blocks_in_flight() <= set(range(16))


@pytest.mark.gpu
def test_copy_with_device_ids_is_captured_and_replayed(accelerator: DeviceSpec) -> None:
    if accelerator.type != "cuda":
        pytest.skip("graphs of this device have another interface")
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        small_plan(), 8, backend=TorchBackend(), copies=COPIES, device=accelerator
    )
    row = engine.block_caches.row("index", 1)
    row.copy_(torch.arange(16, dtype=torch.uint8, device=row.device)[:, None].expand(16, 4))
    ids = torch.tensor([[0, -1, -1], [1, -1, -1]], device=row.device)
    engine.copy_blocks_on_device(ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        engine.copy_blocks_on_device(ids)

    ids.copy_(torch.tensor([[2, -1, 3], [4, -1, 5]]))
    graph.replay()
    ids.fill_(-1)
    graph.replay()

    # A block is two pages: 0 to 1 before the capture, then 2 to 4 and 3 to 5, then nothing.
    assert row[:, 0].tolist() == [0, 1, 0, 1, 4, 5, 6, 7, 4, 5, 6, 7, 12, 13, 14, 15]
