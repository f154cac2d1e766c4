"""Actors that the tests start: ranks of a model in pipeline stages, and what may happen to one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from cachecore_ray import CacheRank

from cachecore import (
    AgreementError,
    BlockCacheGeometry,
    ByteBackend,
    CacheEngine,
    CachePlanSet,
    KvCacheConfig,
    StandardLayoutPolicy,
    StateCacheRequest,
    build_block_cache_plan,
)
from cachecore.reference import BYTE_COPY

BLOCK = 2048
"""Bytes of a layer's block: K and V of 4 tokens, 2 heads, 64 dims in float16."""


SLOT = 1024
"""Bytes of a layer's state."""


def stage(layers: Sequence[int], head_dim: int = 64, state_layers: Sequence[int] = ()) -> CachePlanSet:
    """One stage; some of its layers may be recurrent."""
    state = StateCacheRequest(name="recurrent", shape=(4, 64), dtype="float32", layers=tuple(state_layers) or None)
    return build_block_cache_plan(
        kv=KvCacheConfig(layers=layers, num_kv_heads=2, head_dim=head_dim, dtype="float16"),
        states=[state] if state_layers else [],
        geometry=BlockCacheGeometry(4),
        device="null",
        policy=StandardLayoutPolicy(),
    )


@ray.remote(num_cpus=0)
class StageRank(CacheRank):
    """Some layers and some memory. ``trouble`` maps a step to what happens there: ``die``, ``sleep`` or ``raise``."""

    def __init__(
        self,
        layers: Sequence[int],
        memory: Mapping[str, Any],
        *,
        head_dim: int = 64,
        state_layers: Sequence[int] = (),
        trouble: Mapping[str, str] | None = None,
    ) -> None:
        self._stage = layers, head_dim, state_layers
        self._memory = memory
        self._trouble = dict(trouble or {})

    def build_cache_plans(self) -> CachePlanSet:
        """Its layers."""
        self._happen("plan")
        return stage(*self._stage)

    def cache_memory(self) -> Mapping[str, Any]:
        """As given."""
        return self._memory

    def take_agreement(self, rank: int, agreed: str) -> str:
        """With trouble before and after."""
        self._happen("take")
        answer = super().take_agreement(rank, agreed)
        self._happen("taken")
        return answer

    def agreed(self) -> Any:
        """The counts, or why there are none."""
        try:
            return dict(self.cache_agreement.counts)
        except AgreementError as error:
            return str(error)

    def open_and_close(self) -> list[int]:
        """Open an engine with what was agreed: bytes taken, and bytes of the budget."""
        backend = ByteBackend(capacity_nbytes=self._memory["memory_nbytes"])
        counts = self.cache_agreement.counts_of(self.cache_plans)
        with CacheEngine(self.cache_plans, counts, backend=backend, copies=[BYTE_COPY]):
            return [backend.taken_nbytes, backend.capacity_nbytes]

    def where(self) -> str:
        """The node it runs on."""
        return ray.get_runtime_context().get_node_id()

    def _happen(self, step: str) -> None:
        what = self._trouble.get(step)
        if what == "die":
            os._exit(7)
        if what == "sleep":
            time.sleep(3)
        if what == "raise":
            raise OSError("the driver is wedged")
