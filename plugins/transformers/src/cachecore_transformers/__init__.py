"""Run transformers models on cachecore: every layer's keys and values in blocks of one engine, states in slots.

:func:`open_pool` plans a model's cache and opens an engine; :class:`CachecoreCache` is the ``Cache`` to
pass to a model or to ``generate()``. ``model.set_attn_implementation("cachecore")`` reads the blocks where they are,
with a backend that can. Needs a backend with torch tensors, such as ``cachecore-cpu``.
"""

from __future__ import annotations

from cachecore_transformers.attention import register_attention
from cachecore_transformers.cache import CachecoreCache
from cachecore_transformers.graphs import DecodeGraph
from cachecore_transformers.handed import AttentionPath
from cachecore_transformers.models import SUPPORTED_KINDS, LayerCache, describe_layers
from cachecore_transformers.plan import blocks_for, measure_kv_shapes, measure_state_shapes, plan_model
from cachecore_transformers.pool import CachePool, open_pool
from cachecore_transformers.shapes import EntryShape, KvShape, StateShape

__version__ = "0.1.0"

__all__ = [
    "SUPPORTED_KINDS",
    "AttentionPath",
    "CachePool",
    "CachecoreCache",
    "DecodeGraph",
    "EntryShape",
    "KvShape",
    "LayerCache",
    "StateShape",
    "blocks_for",
    "describe_layers",
    "measure_kv_shapes",
    "measure_state_shapes",
    "open_pool",
    "plan_model",
]

register_attention()  # at import: a model may name it before any pool is opened, even while it is loaded
