"""Swap-in by layers: the same bytes as the whole swap, and a completion for each layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from cachecore_cuda_triton.layerwise import (
    LayerwiseSwapIn,
    layers_of,
    layerwise_swap_in,
    rows_by_layer,
    segments_of_rows,
)
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
    COMPLETED,
    BlockCacheCopy,
    BlockCacheGeometry,
    BlockCopyInfo,
    BlockPairs,
    CacheEngine,
    CacheLookupError,
    CachePlanSet,
    CacheTensorSpec,
    Completion,
    CopyContext,
    DeviceSpec,
    LayoutHints,
    PlanError,
    StandardLayoutPolicy,
    plan_from_specs,
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
    assert row_bytes(real) == row_bytes(oracle)


def row_bytes(engine: CacheEngine[Any]) -> list[bytes]:
    """What the rows hold, without what lies between them."""
    allocation = engine.allocation()
    pools = [
        torch.tensor(list(content), dtype=torch.uint8).view(spec.outer, allocation.num_entries, spec.inner)
        for spec, content in zip(allocation.layout.pools, tier_contents(engine, host=False), strict=True)
    ]
    return [
        pools[place.pool][place.outer, :, place.offset : place.offset + place.nbytes].contiguous().numpy().tobytes()
        for rows in allocation.layout.slices
        for place in rows
        if place.nbytes
    ]


@pytest.mark.parametrize("one_run", [False, True])
def test_groups_of_equal_layouts_keep_their_own_layers(one_run: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    hints = LayoutHints(one_run_per_block=one_run)
    full, sliding = (
        plan_from_specs(
            [
                CacheTensorSpec(name=f"{kind}_{group}", shape=(4, 4, 8), dtype="float16", row_ids=layers)
                for kind in ("k", "v")
            ],
            BlockCacheGeometry(8, 4), StandardLayoutPolicy(), group=group, window=window, hints=hints,
        )
        for group, window, layers in (("full", None, (0, 2)), ("sliding", 8, (1, 3)))
    )  # fmt: skip
    assert full.layout == sliding.layout
    built: list[CopyContext] = []

    class Swap(BlockCacheCopy):
        def __init__(self, context: CopyContext, *, host_is_src: bool) -> None:
            built.append(context)

        def __call__(self, pairs: BlockPairs, after: object = ()) -> Completion:
            return COMPLETED

    monkeypatch.setattr("cachecore_cuda_triton.swap.CudaSwap", Swap)
    record = layerwise_swap_in(CachePlanSet((full, sliding), "cuda", "cuda-triton"), layers_per_step=2)
    with CacheEngine(
        CachePlanSet((full, sliding), "cpu", "torch-default"),
        {"full": 4, "sliding": 4},
        backend=TorchBackend(),
        copies=(
            replace(record, probe=lambda src, dst: None if dst.layout == full.layout else "out"),
            *cachecore_register_block_copies(),
        ),
        device="cpu",
        host_counts={"full": 4, "sliding": 4},
    ) as engine:
        arrivals = engine.swap_in({0: 1}, group="sliding")

    assert [arrivals.layer(layer) for layer in (1, 3)] == [COMPLETED, COMPLETED]
    with pytest.raises(CacheLookupError, match="its layers are 1, 3"):
        arrivals.layer(0)
    if one_run:  # K and V of both layers are neighbours in a page
        assert {len(context.segments) for context in built} == {1}


def test_a_group_that_is_not_named_is_found_by_its_layout() -> None:
    plans = plan_set(specs_of(), pages=2)
    device = TorchBackend().allocate(plans.only().layout, 8, DeviceSpec.parse("cpu"))
    named = [CopyContext(TorchBackend(), device, TorchBackend(), device, 4, 4, (), group) for group in ("other", None)]

    for context in named:
        assert list(layers_of(plans, context)) == [0, 1, 2]


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
