"""One launch moves every byte that it should and no other: worked by hand, and against the core's ``ByteBackend``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cachecore_cuda_triton.block_copy import FusedBlockCopy
from cachecore_torch_default import TorchBackend
from cachecore_torch_default.plugin import cachecore_register_block_copies
from cachecore_torch_default.testing import (
    NUM_BLOCKS,
    KindPolicy,
    draw_pairs,
    engine_and_oracle,
    plan_sets,
    tier_contents,
)
from hypothesis import given
from hypothesis import strategies as st

from cachecore import (
    BlockCacheGeometry,
    BlockCopyInfo,
    BlockPairs,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    StandardLayoutPolicy,
    plan_from_specs,
)

FUSED = BlockCopyInfo("fused", 500, lambda src, dst: None if src == dst else "one device", FusedBlockCopy)
COPIES = (FUSED, *cachecore_register_block_copies())


def engine_of(specs: list[CacheTensorSpec], pages: int, num_blocks: int, device: torch.device) -> CacheEngine[Any]:
    plan = plan_from_specs(specs, BlockCacheGeometry(pages, 1), StandardLayoutPolicy())
    plans = CachePlanSet((plan,), device.type, "torch-default")
    return CacheEngine(plans, num_blocks, backend=TorchBackend(), copies=COPIES, device=device)


def row_spec(name: str, nbytes: int, rows: int, **options: Any) -> CacheTensorSpec:
    return CacheTensorSpec(
        name=name,
        shape=(nbytes,),
        dtype="uint8",
        row_ids=tuple(range(rows)),
        consumer_rows=tuple(range(rows)),
        **options,
    )


@given(drawn=plan_sets(), data=st.data())
def test_equals_the_byte_backend(
    device: torch.device, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    real, oracle = engine_and_oracle(plans, TorchBackend(policy), device, COPIES)
    pairs = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)

    for engine in (real, oracle):
        engine.copy_blocks(pairs).synchronize()

    assert real.stats().groups[0].copies[0].record == "fused"
    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)


@given(drawn=plan_sets(), data=st.data())
def test_device_ids_ignore_padding(
    device: torch.device, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    real, oracle = engine_and_oracle(plans, TorchBackend(policy), device, COPIES)
    pairs = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)
    padded = data.draw(st.permutations([*pairs, (-1, 2), (1, -1), (-1, -1)]))

    real.copy_blocks_on_device(torch.tensor(padded, device=device).T.contiguous())
    oracle.copy_blocks(pairs)

    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)


# Pages of real caches: 128 fp8 values and a scale; 512 + 64 + 8; 512 fp8, 16 scales and 128 rotary bytes.
@pytest.mark.parametrize("nbytes", [132, 584, 656, 1, 15, 17, 4096, 4097])
@pytest.mark.parametrize("alignment", [1, 4, 16])
def test_every_byte_of_odd_pages(nbytes: int, alignment: int, device: torch.device) -> None:
    spec = row_spec("odd", nbytes, 2, alignment=alignment, per_row_contiguous=alignment == 1)
    engine = engine_of([spec], 2, 5, device)
    pool = engine.allocation().pools[0]
    pool.random_(0, 256)
    # (rows, blocks, pages of a block, bytes with padding)
    expected = pool.clone().view(2, 5, 2, -1)
    expected[:, [4, 0]] = expected[:, [1, 1]]

    engine.copy_blocks(BlockPairs([1, 1], [4, 0]))

    assert torch.equal(pool.view(2, 5, 2, -1), expected)


def test_pools_of_different_kinds_move_in_one_call(device: torch.device) -> None:
    specs = [row_spec("a", 48, 3), row_spec("b", 7, 1, alignment=1, per_row_contiguous=True), row_spec("c", 20, 2)]
    engine = engine_of(specs, 2, 4, device)
    pools = engine.allocation().pools
    assert len(pools) == 3
    for pool in pools:
        pool.random_(0, 256)
    expected = [pool.clone().view(pool.shape[0], 4, -1) for pool in pools]
    for pool in expected:
        pool[:, 3] = pool[:, 0]

    engine.copy_blocks({0: 3})

    assert all(torch.equal(pool.view_as(want), want) for pool, want in zip(pools, expected, strict=True))


def test_nothing_to_copy_is_nothing(device: torch.device) -> None:
    engine = engine_of([row_spec("a", 48, 1)], 1, 3, device)
    pool = engine.allocation().pools[0].random_(0, 256)
    before = pool.clone()

    engine.copy_blocks({})
    engine.copy_blocks_on_device(torch.empty(2, 0, dtype=torch.int64, device=device))
    engine.copy_blocks_on_device(torch.full((2, 3), -1, dtype=torch.int64, device=device))

    assert torch.equal(pool, before)


@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(2, 3, dtype=torch.int32),
        torch.zeros(3, 2, dtype=torch.int64),
        torch.zeros(6, 2, dtype=torch.int64).T,
    ],
)
def test_device_ids_of_another_form_are_refused(ids: torch.Tensor, device: torch.device) -> None:
    engine = engine_of([row_spec("a", 48, 1)], 1, 3, device)

    with pytest.raises((TypeError, ValueError), match="ids"):
        engine.copy_blocks_on_device(ids.to(device) if ids.is_contiguous() else ids.T.to(device).T)
