"""The engine with its array type filled in."""

from __future__ import annotations

from torch import Tensor

from cachecore import CacheEngine

__all__ = ["TorchCacheEngine"]

TorchCacheEngine = CacheEngine[Tensor]
"""``CacheEngine`` whose views are tensors."""
