"""From a transformers model to a plan set, and from a workload to block counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from cachecore import (
    BlockCacheConsumer,
    BlockCacheGeometry,
    BlockCacheRequest,
    BlockCacheRequestContext,
    CachePlanSet,
    GroupSpec,
    KvCacheConfig,
    LayoutHints,
    PlanError,
    PluginRegistry,
    StateCacheRequest,
    build_block_cache_plan,
)
from cachecore.meaning import positive
from cachecore.sizing import request_units
from cachecore_transformers.models import LayerCache, describe_layers
from cachecore_transformers.shapes import KvShape, StateShape, shares_kv, state_name

__all__ = ["STATE_GROUP", "blocks_for", "measure_kv_shapes", "measure_state_shapes", "plan_model"]

STATE_GROUP = "state"
"""The one state group of a model: a sequence has one slot, with the states of all layers."""


def plan_model(
    config: Any,
    *,
    block_size: int = 16,
    kernel_block_size: int | None = None,
    dtype: Any = None,
    device: object = "cpu",
    kv_shapes: Mapping[int, KvShape] | None = None,
    state_shapes: Mapping[int, tuple[StateShape, ...]] | None = None,
    backend: str | None = None,
    hints: LayoutHints | None = None,
    registry: PluginRegistry | None = None,
) -> CachePlanSet:
    """Plan the cache of a model from its configuration; no weights and no device are needed.

    Full attention is one group, ``full``; each window is one more, ``sliding`` (``sliding_<window>``
    where a model has several); DeepSeek-V4's entries of every ``n`` tokens are a group ``compressed_<n>``,
    with blocks of ``n`` times as many tokens. All states are one state group, ``state``: one slot a
    sequence. ``dtype`` defaults to the configuration's. Layers that use another layer's keys and values
    get no rows.

    Raises
    ------
    PlanError
        For a layer kind that is not supported, a configuration without a dtype, or bad geometry.
    """
    layers = describe_layers(config, kv_shapes, state_shapes)
    dtype = dtype or getattr(config.get_text_config(decoder=True), "dtype", None)
    if dtype is None:
        raise PlanError(f"{type(config).__name__} names no dtype; pass dtype=, the one that the model computes in")
    geometry = BlockCacheGeometry(block_size, kernel_block_size)
    windows = {layer.group: layer.window for layer in layers if layer.group is not None}
    if all(layer.keeps_nothing for layer in layers):
        raise PlanError(f"{type(config).__name__} has no layer that keeps a cache of its own; nothing to plan")
    rates = {entry.group: entry.rate for layer in layers for entry in layer.entries if entry.group not in windows}
    return build_block_cache_plan(
        [_Entries(layer, str(dtype)) for layer in layers if layer.entries],
        geometry=geometry,
        device=device,
        kv=_kv_configs(layers, str(dtype)),
        states=_state_requests(layers, str(dtype)),
        groups=[
            *(GroupSpec(name, geometry, window) for name, window in windows.items()),
            *(GroupSpec(name, _scaled(geometry, rate)) for name, rate in rates.items()),
        ],
        backend=backend,
        hints=hints,
        registry=registry,
    )


def _scaled(geometry: BlockCacheGeometry, rate: int) -> BlockCacheGeometry:
    """As many entries a block as there are tokens in a block of the other groups."""
    return BlockCacheGeometry(geometry.logical_block_size * rate, geometry.page_size * rate)


class _Entries(BlockCacheConsumer):
    """Asks for what one layer keeps beside its keys and values."""

    def __init__(self, layer: LayerCache, dtype: str) -> None:
        self.layer = layer
        self.dtype = dtype

    def get_block_cache_requests(self, context: BlockCacheRequestContext) -> Sequence[BlockCacheRequest]:
        return [
            BlockCacheRequest(
                name=entry.name,
                shape=(context.geometry(entry.group).page_size // entry.rate, entry.width),
                dtype=self.dtype,
                axes=("token", "other"),
                tokens_per_entry=entry.rate,
                per_row_contiguous=entry.dense,
                group=entry.group,
                layer=self.layer.layer,
            )
            for entry in self.layer.entries
        ]


def _state_requests(layers: Sequence[LayerCache], dtype: str) -> list[StateCacheRequest]:
    """One request for the layers whose states are alike."""
    alike: dict[StateShape, list[int]] = {}
    for layer in layers:
        for state in layer.states:
            alike.setdefault(state, []).append(layer.layer)
    return [
        StateCacheRequest(
            name=state.name, shape=state.shape, dtype=state.dtype or dtype, layers=tuple(members), group=STATE_GROUP
        )
        for state, members in alike.items()
    ]


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
    text_config = model.config.get_text_config(decoder=True)
    shapes = {}
    for number, layer in enumerate(_after_one_token(model).layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is not None and values is not None and keys.numel():
            own = text_config.per_layer_config[number]
            latent = shares_kv(own) or getattr(own, "kv_lora_rank", None) == keys.shape[-1]
            v_dim = 0 if shares_kv(own) else values.shape[-1]
            shapes[number] = KvShape(keys.shape[1], keys.shape[-1], v_dim, latent and keys.shape[1] == 1)
    return shapes


def measure_state_shapes(model: Any) -> dict[int, tuple[StateShape, ...]]:
    """The convolution and recurrent states that each layer of ``model`` keeps, found as by :func:`measure_kv_shapes`.

    For models whose state shapes are not known.
    """
    shapes = {}
    for number, layer in enumerate(_after_one_token(model).layers):
        found = [
            StateShape(state_name(kind, index), tuple(state.shape[1:]), str(state.dtype).removeprefix("torch."))
            for kind in ("conv", "recurrent")
            for index, state in (getattr(layer, f"{kind}_states", None) or {}).items()
            if state is not None
        ]
        if found:
            shapes[number] = tuple(found)
    return shapes


def _after_one_token(model: Any) -> DynamicCache:
    cache = DynamicCache(config=model.config)
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    named = "cache_params" if "cache_params" in signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        model(input_ids=token, use_cache=True, **{named: cache})
    return cache


def blocks_for(
    plans: CachePlanSet, *, num_sequences: int, max_tokens: int, max_step_tokens: int | None = None
) -> dict[str, int]:
    """Blocks (slots, for states) per group for ``num_sequences`` of up to ``max_tokens`` each.

    ``max_step_tokens`` is the longest single forward call (default: all tokens at once), which decides
    what a window holds. One block a sequence is added, because a fork copies the block that is not full
    before it lets the old one go.
    """
    if not isinstance(plans, CachePlanSet):
        raise TypeError(f"plans must be a CachePlanSet, as plan_model() makes it, not {plans!r}")
    sequences, tokens = positive(num_sequences, "num_sequences"), positive(max_tokens, "max_tokens")
    step = tokens if max_step_tokens is None else positive(max_step_tokens, "max_step_tokens")
    return {plan.name: sequences * (request_units(plan, tokens, step) + 1) for plan in plans}
