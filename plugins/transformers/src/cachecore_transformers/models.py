"""What a transformers configuration says about each layer's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers.cache_utils import get_layer_types_and_kwargs

from cachecore.errors import PlanError
from cachecore_transformers.shapes import (
    COMPRESSED_KINDS,
    CONV_KINDS,
    INDEXED_KINDS,
    EntryShape,
    KvShape,
    StateShape,
    entry_shapes,
    kv_shape,
)
from cachecore_transformers.shapes import state_shapes as states_of

__all__ = ["SUPPORTED_KINDS", "LayerCache", "describe_layers"]

SUPPORTED_KINDS = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    *INDEXED_KINDS,
    *COMPRESSED_KINDS,
    *CONV_KINDS,
    "dummy",
)
"""Layer kinds, as transformers names them, that cachecore can keep; a dummy layer keeps nothing."""


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's cache: keys and values, other entries in blocks, and states in slots.

    ``group`` and ``shape`` are None for a layer that keeps no keys and values of its own.
    """

    layer: int
    kind: str
    group: str | None
    window: int | None
    shape: KvShape | None
    entries: tuple[EntryShape, ...] = ()
    states: tuple[StateShape, ...] = ()

    @property
    def keeps_nothing(self) -> bool:
        """Whether this layer has no cache of its own at all."""
        return self.group is None and not self.states


def describe_layers(
    config: Any,
    kv_shapes: Mapping[int, KvShape] | None = None,
    state_shapes: Mapping[int, tuple[StateShape, ...]] | None = None,
) -> tuple[LayerCache, ...]:
    """Read ``config`` (a transformers configuration) into one description a layer.

    ``kv_shapes`` and ``state_shapes`` overrule what the configuration says of single layers, for models
    that keep something else than their configuration suggests, or do not say
    (:func:`~cachecore_transformers.measure_kv_shapes`, :func:`~cachecore_transformers.measure_state_shapes`).

    Raises
    ------
    PlanError
        For a layer of a kind that is not supported, naming the layer, its kind and the kinds that are;
        and for states whose shape is neither known nor given.
    """
    if not hasattr(config, "get_text_config"):
        raise TypeError(f"config must be a transformers configuration, such as model.config, not {config!r}")
    text_config = config.get_text_config(decoder=True)
    kinds, arguments = get_layer_types_and_kwargs(text_config)
    _check_shapes(kv_shapes, "kv_shapes", KvShape, len(kinds))
    _check_shapes(state_shapes, "state_shapes", StateShape, len(kinds))
    layers = []
    for layer, kind in enumerate(kinds):
        if kind not in SUPPORTED_KINDS:
            raise PlanError(
                f"layer {layer} of {type(text_config).__name__} is a {kind!r} layer, which cachecore cannot keep; "
                f"supported kinds are {', '.join(SUPPORTED_KINDS)} (MLA latents among them)",
                layer=layer,
                kind=kind,
                supported=SUPPORTED_KINDS,
            )
    windows = [_window_of(kind, argument) for kind, argument in zip(kinds, arguments, strict=True)]
    several = len({window for window in windows if window is not None}) > 1
    for layer, (kind, window) in enumerate(zip(kinds, windows, strict=True)):
        if kind == "dummy":
            layers.append(LayerCache(layer, kind, None, None, None))
            continue
        own = text_config.per_layer_config[layer]
        states = (state_shapes or {}).get(layer)
        states = states_of(own, kind, layer) if states is None else states
        if kind in ("linear_attention", "conv"):
            layers.append(LayerCache(layer, kind, None, None, None, (), states))
            continue
        group = "full" if window is None else f"sliding_{window}" if several else "sliding"
        shape = (kv_shapes or {}).get(layer) or kv_shape(own, layer)
        layers.append(LayerCache(layer, kind, group, window, shape, entry_shapes(own, kind, layer), states))
    return tuple(layers)


def _check_shapes(given: object, what: str, kind: type[Any], num_layers: int) -> None:
    """``{layer: shape}``, or a tuple of shapes a layer where there are states."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} must be a mapping from layer to {kind.__name__}, not {given!r}")
    for layer, shapes in given.items():
        if layer not in range(num_layers):
            raise PlanError(f"{what} names layer {layer!r}, but the model has layers 0 to {num_layers - 1}")
        several = shapes if kind is StateShape and isinstance(shapes, tuple) else (shapes,)
        for shape in several:
            if not isinstance(shape, kind):
                raise TypeError(f"{what} of layer {layer} must be of type {kind.__name__}, not {shape!r}")


def _window_of(kind: str, argument: Mapping[str, Any]) -> int | None:
    return argument["config"].sliding_window if kind in COMPRESSED_KINDS else argument.get("sliding_window")
