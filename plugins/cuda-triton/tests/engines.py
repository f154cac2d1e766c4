"""Engines over hand-made plans, and the bytes they should hold."""

from __future__ import annotations

import random

import torch
from cachecore_cuda_triton import plugin as cuda_plugin
from cachecore_torch_default import plugin as torch_plugin
from torch import Tensor

from cachecore import (
    BlockCacheGeometry,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    LayoutHints,
    PluginRecord,
    PluginRegistry,
    StandardLayoutPolicy,
    plan_from_specs,
)


def registry() -> PluginRegistry:
    found = PluginRegistry(environ={})
    found.register(torch_plugin, PluginRecord("torch-default", "cachecore-torch-default", "source"))
    found.register(cuda_plugin, PluginRecord("cuda-triton", "cachecore-cuda-triton", "source"))
    return found


def specs_of(token_nbytes: tuple[int, ...] = (132, 584, 656), rows: int = 3, tokens: int = 16) -> list[CacheTensorSpec]:
    """Packed K/V, and operator caches whose tokens take odd numbers of bytes."""
    layers = tuple(range(rows))
    specs = [
        CacheTensorSpec(
            name=name, shape=(tokens, 2, 8), dtype="float16", row_ids=layers, axes=("token", "head", "other")
        )
        for name in ("k_cache", "v_cache")
    ]
    specs.extend(
        CacheTensorSpec(
            name=f"index_{nbytes}",
            shape=(tokens, nbytes),
            dtype="uint8",
            alignment=1,
            row_ids=layers,
            consumer_rows=layers,
            per_row_contiguous=nbytes % 4 == 0 and nbytes != 584,
        )
        for nbytes in token_nbytes
    )
    return specs


def plan_set(
    specs: list[CacheTensorSpec], pages: int = 1, tokens: int = 16, hints: LayoutHints | None = None
) -> CachePlanSet:
    geometry = BlockCacheGeometry(pages * tokens, tokens)
    return CachePlanSet((plan_from_specs(specs, geometry, StandardLayoutPolicy(), hints=hints),), "cuda", "cuda-triton")


def open_gpu(
    plans: CachePlanSet, num_blocks: int, num_host: int = 0, *, device: str = "cuda:0", stable_addresses: bool = False
) -> CacheEngine[Tensor]:
    found = registry()
    return CacheEngine(
        plans,
        num_blocks,
        backend=found.select(device).chosen.info.load(),
        copies=found.copy_infos(),
        device=device,
        host_counts=num_host,
        stable_addresses=stable_addresses,
    )


def fill(engine: CacheEngine[Tensor]) -> None:
    for pool in engine.allocation().pools:
        if pool.numel():
            pool.random_(0, 255)


def blocks_of(engine: CacheEngine[Tensor]) -> list[Tensor]:
    """Every pool as ``(outer, blocks, bytes of a block)``, aliasing it."""
    pages = engine.plans.only().pages_per_unit
    return [pool.view(pool.shape[0], -1, pages * pool.shape[2]) for pool in engine.allocation().pools]


def distinct(num: int, limit: int, seed: int = 0) -> list[int]:
    return random.Random(seed).sample(range(limit), num)


def same(found: list[Tensor], wanted: list[Tensor]) -> bool:
    return all(torch.equal(one, two) for one, two in zip(found, wanted, strict=True))
