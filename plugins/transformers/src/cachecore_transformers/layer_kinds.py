"""Which cache layer serves which kind of layer."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import DummyLayer

from cachecore_transformers.compressed_layers import CompressedLayer, SharedKvLayer
from cachecore_transformers.layers import BlockLayer, IndexedBlockLayer, SlidingBlockLayer
from cachecore_transformers.models import LayerCache
from cachecore_transformers.sequences import Sequences
from cachecore_transformers.shapes import COMPRESSED_KINDS, INDEXED_KINDS
from cachecore_transformers.state_layers import HybridLayer, SlidingHybridLayer, StateLayer

__all__ = ["make_layer"]

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


def make_layer(sequences: Sequences, cache: LayerCache) -> Any:
    """The layer that transformers will call for ``cache``."""
    if cache.keeps_nothing:
        return DummyLayer()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    made = _LAYERS[cache.kind]
    if made is SlidingBlockLayer and cache.shape is not None and cache.shape.latent:
        made = SharedKvLayer  # one row for keys and values, which are the same
    return made(sequences, cache)
