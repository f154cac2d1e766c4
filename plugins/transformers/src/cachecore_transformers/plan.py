"""From a transformers model to a plan set, and from a workload to block counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from cachecore import (
    BlockCacheGeometry,
    CachePlanSet,
    GroupSpec,
    KvCacheConfig,
    LayoutHints,
    PlanError,
    PluginRegistry,
    build_block_cache_plan,
)
from cachecore.sizing import request_units
from cachecore_transformers.models import KvShape, LayerCache, describe_layers

__all__ = ["blocks_for", "measure_kv_shapes", "plan_model"]


def plan_model(
    config: Any,
    *,
    block_size: int = 16,
    kernel_block_size: int | None = None,
    dtype: Any = None,
    device: object = "cpu",
    kv_shapes: Mapping[int, KvShape] | None = None,
    backend: str | None = None,
    hints: LayoutHints | None = None,
    registry: PluginRegistry | None = None,
) -> CachePlanSet:
    """Plan the cache of a model from its configuration; no weights and no device are needed.

    Full attention is one group, ``full``; each window is one more, ``sliding`` (``sliding_<window>``
    where a model has several). ``dtype`` defaults to the configuration's. Layers that use another
    layer's keys and values get no rows.

    Raises
    ------
    PlanError
        For a layer kind that is not supported, a configuration without a dtype, or bad geometry.
    """
    layers = describe_layers(config, kv_shapes)
    dtype = dtype or getattr(config.get_text_config(decoder=True), "dtype", None)
    if dtype is None:
        raise PlanError(f"{type(config).__name__} names no dtype; pass dtype=, the one that the model computes in")
    geometry = BlockCacheGeometry(block_size, kernel_block_size)
    windows = {layer.group: layer.window for layer in layers if layer.group is not None}
    if not windows:
        raise PlanError(f"{type(config).__name__} has no attention layer that keeps keys and values; nothing to plan")
    return build_block_cache_plan(
        geometry=geometry,
        device=device,
        kv=_kv_configs(layers, str(dtype)),
        groups=[GroupSpec(name, geometry, window) for name, window in windows.items()],
        backend=backend,
        hints=hints,
        registry=registry,
    )


def _kv_configs(layers: Sequence[LayerCache], dtype: str) -> list[KvCacheConfig]:
    """One configuration for the layers of one group and shape."""
    alike: dict[tuple[str, KvShape], list[int]] = {}
    for layer in layers:
        if layer.group is not None and layer.shape is not None:
            alike.setdefault((layer.group, layer.shape), []).append(layer.layer)
    configs = []
    for (group, shape), members in alike.items():
        common: dict[str, Any] = {"layers": members, "dtype": dtype, "group": group}
        if shape.latent:
            configs.append(KvCacheConfig(**common, latent_dim=shape.k_dim, rope_dim=shape.v_dim))
        else:
            common.update(num_kv_heads=shape.num_heads, head_dim=shape.k_dim, v_head_dim=shape.v_dim)
            configs.append(KvCacheConfig(**common))
    return configs


def measure_kv_shapes(model: Any) -> dict[int, KvShape]:
    """What each layer of ``model`` really caches, found by a forward call of one token.

    For models whose configuration does not say it. Whether a cache is an MLA latent is still taken
    from the configuration.
    """
    cache = DynamicCache(config=model.config)
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    with torch.no_grad():
        model(input_ids=token, past_key_values=cache, use_cache=True)
    text_config = model.config.get_text_config(decoder=True)
    shapes = {}
    for number, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None:
            latent = getattr(text_config.per_layer_config[number], "kv_lora_rank", None) == keys.shape[-1]
            shapes[number] = KvShape(keys.shape[1], keys.shape[-1], values.shape[-1], latent and keys.shape[1] == 1)
    return shapes


def blocks_for(
    plans: CachePlanSet, *, num_sequences: int, max_tokens: int, max_step_tokens: int | None = None
) -> dict[str, int]:
    """Blocks per group for ``num_sequences`` of up to ``max_tokens`` each.

    ``max_step_tokens`` is the longest single forward call (default: all tokens at once), which decides
    what a window holds. One block a sequence is added, because a fork copies the block that is not full
    before it lets the old one go.
    """
    step = max_tokens if max_step_tokens is None else max_step_tokens
    return {plan.name: num_sequences * (request_units(plan, max_tokens, step) + 1) for plan in plans}
