"""Which cache layer serves which kind of layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transformers.cache_utils import DummyLayer

from cachecore import PlanError
from cachecore_transformers.compressed_layers import CompressedLayer, SharedKvLayer
from cachecore_transformers.layers import BlockLayer, IndexedBlockLayer, SlidingBlockLayer
from cachecore_transformers.models import LayerCache
from cachecore_transformers.sequences import Sequences
from cachecore_transformers.shapes import COMPRESSED_KINDS, INDEXED_KINDS
from cachecore_transformers.state_layers import HybridLayer, SlidingHybridLayer, StateLayer

__all__ = ["make_layers"]

_LAYERS: dict[str, Any] = {
    "full_attention": BlockLayer,
    "sliding_attention": SlidingBlockLayer,
    "chunked_attention": SlidingBlockLayer,
    **dict.fromkeys(INDEXED_KINDS, IndexedBlockLayer),
    "linear_attention": StateLayer,
    "conv": StateLayer,
    "hybrid": HybridLayer,
    "hybrid_sliding": SlidingHybridLayer,
    **dict.fromkeys(COMPRESSED_KINDS, CompressedLayer),
}


class _Layers(list[Any]):
    """The layers of one pool; a model that has more of them gets told so, where a list would say an index."""

    def __getitem__(self, layer: Any) -> Any:
        try:
            return super().__getitem__(layer)
        except IndexError:
            raise PlanError(
                f"layer {layer} of the model has no cache: its pool was opened for a model of {len(self)} layers; "
                "open one with open_pool(model.config)",
                layer=layer,
            ) from None


def make_layers(sequences: Sequences, caches: Iterable[LayerCache]) -> list[Any]:
    """The layers that transformers will call, in order."""
    return _Layers(_make_layer(sequences, cache) for cache in caches)


def _make_layer(sequences: Sequences, cache: LayerCache) -> Any:
    if cache.keeps_nothing:
        return DummyLayer()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    made = _LAYERS[cache.kind]
    if made is SlidingBlockLayer and cache.shape is not None and cache.shape.latent:
        made = SharedKvLayer  # one row for keys and values, which are the same
    return made(sequences, cache)
