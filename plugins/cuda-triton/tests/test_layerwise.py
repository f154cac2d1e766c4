"""Swap-in by layers: the same bytes as the whole swap, and a completion for each layer."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from cachecore_cuda_triton.layerwise import LayerwiseSwapIn, layerwise_swap_in, rows_by_layer, segments_of_rows
from cachecore_torch_default import StagedSwap, TorchBackend
from cachecore_torch_default.plugin import cachecore_register_block_copies
from cachecore_torch_default.testing import (
    NUM_BLOCKS,
    NUM_HOST_BLOCKS,
    KindPolicy,
    draw_pairs,
    engine_and_oracle,
    plan_sets,
    tier_contents,
)
from engines import distinct, plan_set, registry, specs_of
from hypothesis import given
from hypothesis import strategies as st

from cachecore import (
    BlockCopyInfo,
    BlockPairs,
    CacheEngine,
    CacheLookupError,
    CachePlanSet,
    CopyContext,
    PlanError,
)


def on_the_host(plans: CachePlanSet, layers_per_step: int) -> BlockCopyInfo:
    """The same steps over the generic swap, which needs no GPU."""
    layers = rows_by_layer(plans.only().specs)

    def build(context: CopyContext) -> LayerwiseSwapIn:
        step = partial(StagedSwap, host_is_src=True)
        return LayerwiseSwapIn(context, layers, layers_per_step=layers_per_step, build=step)

    return BlockCopyInfo("layerwise", 500, lambda src, dst: None, build)


@pytest.mark.parametrize("layers_per_step", [1, 3])
@given(drawn=plan_sets(), data=st.data())
def test_the_steps_add_up_to_the_whole_swap(
    layers_per_step: int, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    copies = (on_the_host(plans, layers_per_step),)
    real, oracle = engine_and_oracle(plans, TorchBackend(policy), "cpu", copies)
    pairs = draw_pairs(data.draw, NUM_HOST_BLOCKS, NUM_BLOCKS, disjoint=False)

    for engine in (real, oracle):
        engine.swap_in(pairs).synchronize()

    # Where both tiers have one layout, the whole swap moves padding too; the steps move rows.
    if plans.only().layout != plans.only().host_layout:
        assert tier_contents(real, host=False) == tier_contents(oracle, host=False)


def test_rows_of_a_layer_come_from_every_spec_that_has_it() -> None:
    layers = rows_by_layer(specs_of(token_nbytes=(132,), rows=2))

    # k_cache, v_cache and index_132, one row a layer each
    assert layers == {0: ((0, 0), (1, 0), (2, 0)), 1: ((0, 1), (1, 1), (2, 1))}


def test_segments_of_all_rows_hold_the_whole_block() -> None:
    plans = plan_set(specs_of(), pages=2)
    backend = TorchBackend()
    engine = CacheEngine(
        plans, 4, backend=backend, copies=tuple(cachecore_register_block_copies()), device="cpu", host_counts=3
    )
    context = CopyContext(backend, engine.allocation(host=True), backend, engine.allocation(), 3, 4, ())

    segments = segments_of_rows(context, [row for rows in rows_by_layer(plans.only().specs).values() for row in rows])

    # 3 rows of 2 pages of 16 tokens: K and V of 2 x 8 x 2 bytes, and 132, 584 and 656 bytes
    assert sum(one.nbytes * one.num_pages for one in segments) == 3 * 2 * 16 * (32 + 32 + 132 + 584 + 656)


def test_steps_of_no_layers_are_refused() -> None:
    with pytest.raises(PlanError, match="layers_per_step is 0"):
        layerwise_swap_in(plan_set(specs_of()), layers_per_step=0)


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["staged", "pitched", "direct"])
def test_a_layer_may_be_used_before_the_last_has_arrived(
    gpu: torch.device, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    plans = plan_set(specs_of(), pages=2)
    found = registry()
    backend = found.select("cuda").chosen.info.load()
    copies = (layerwise_swap_in(plans, layers_per_step=1), *found.copy_infos())
    with CacheEngine(plans, 40, backend=backend, copies=copies, device="cuda:0", host_counts=20) as engine:
        caches = [row for name in engine.block_caches for row in [engine.block_caches[name]]]
        for cache in caches:
            cache.view(torch.uint8).random_(0, 255)
        kept = [cache.clone() for cache in caches]
        chosen = distinct(40, 40)
        away, back = chosen[:20], chosen[20:]
        engine.swap_out(BlockPairs(away, range(20))).synchronize()

        arrivals = engine.swap_in(BlockPairs(range(20), back))

        for layer in range(3):
            arrivals.layer(layer).wait()
            for cache, old in zip(caches, kept, strict=True):
                for gone, here in zip(away, back, strict=True):
                    new = cache[layer, 2 * here : 2 * here + 2]
                    assert torch.equal(new.view(torch.uint8), old[layer, 2 * gone : 2 * gone + 2].view(torch.uint8))
        with pytest.raises(CacheLookupError, match="layers are 0, 1, 2"):
            arrivals.layer(3)
        assert engine.stats().groups[0].copies[2].record == "cuda-layerwise-swap-in"
