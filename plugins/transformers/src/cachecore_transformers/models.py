"""What a transformers configuration says about each layer's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers.cache_utils import get_layer_types_and_kwargs

from cachecore.errors import PlanError

__all__ = ["SUPPORTED_KINDS", "KvShape", "LayerCache", "describe_layers"]

SUPPORTED_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "dummy")
"""Layer kinds, as transformers names them, that can be kept in blocks; a dummy layer keeps nothing."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values of one token in one layer: ``(num_heads, k_dim)`` and ``(num_heads, v_dim)``.

    ``latent`` marks an MLA cache: one head whose key is the latent and whose value is the rotary part.
    """

    num_heads: int
    k_dim: int
    v_dim: int
    latent: bool = False


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache. ``group`` and ``shape`` are None for a layer that keeps none of its own."""

    layer: int
    kind: str
    group: str | None
    window: int | None
    shape: KvShape | None


def describe_layers(config: Any, kv_shapes: Mapping[int, KvShape] | None = None) -> tuple[LayerCache, ...]:
    """Read ``config`` (a transformers configuration) into one description a layer.

    ``kv_shapes`` overrules what the configuration says of single layers, for models that keep
    something else than their configuration suggests (:func:`~cachecore_transformers.measure_kv_shapes`).

    Raises
    ------
    PlanError
        For a layer of a kind that is not supported, naming the layer, its kind and the kinds that are.
    """
    text_config = config.get_text_config(decoder=True)
    kinds, arguments = get_layer_types_and_kwargs(text_config)
    for layer, kind in enumerate(kinds):
        if kind not in SUPPORTED_KINDS:
            raise PlanError(
                f"layer {layer} of {type(text_config).__name__} is a {kind!r} layer, which cannot be kept in blocks "
                f"yet; supported kinds are {', '.join(SUPPORTED_KINDS)} (MLA latents among them)",
                layer=layer,
                kind=kind,
                supported=SUPPORTED_KINDS,
            )
    windows = sorted({argument["sliding_window"] for argument in arguments if "sliding_window" in argument})
    given = kv_shapes or {}
    layers = []
    for layer, (kind, argument) in enumerate(zip(kinds, arguments, strict=True)):
        if kind == "dummy":
            layers.append(LayerCache(layer, kind, None, None, None))
            continue
        window = argument.get("sliding_window")
        group = "full" if window is None else "sliding" if len(windows) == 1 else f"sliding_{window}"
        shape = given.get(layer) or _shape_of(text_config.per_layer_config[layer], layer)
        layers.append(LayerCache(layer, kind, group, window, shape))
    return tuple(layers)


def _shape_of(config: Any, layer: int) -> KvShape:
    latent = getattr(config, "kv_lora_rank", None)
    if latent is not None:
        return KvShape(1, latent, config.qk_rope_head_dim, latent=True)
    try:
        num_heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    except AttributeError as error:
        raise PlanError(
            f"layer {layer}: {type(config).__name__} does not say how many heads of which size it caches "
            f"({error}); pass kv_shapes=measure_kv_shapes(model)",
            layer=layer,
        ) from error
    return KvShape(kv_heads, head_dim, head_dim)
