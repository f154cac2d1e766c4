"""cachecore: the KV-cache engine as a plugin-based hardware-abstraction framework.

Bottom up: ``errors``; ``dtypes``, ``device``, ``blocks``, ``meaning``; ``payload``, ``schema`` (what
operators ask for); ``layout``, ``layout_kinds``, ``policy`` (where bytes go); ``plan``, ``collect``, ``kv``;
``sizing``, ``backend`` (contracts with plugins); ``hookspecs``, ``registry``, ``view``, ``transfer``;
``engine``, ``reference``; ``build``; ``cli``. No array library is imported by any of them.
"""

from __future__ import annotations

from cachecore import sizing
from cachecore.agreement import Agreement, agree
from cachecore.backend import (
    API_VERSION,
    COMPLETED,
    HOST,
    PINNED_HOST,
    BackendInfo,
    CacheAllocation,
    CacheBackend,
    Completion,
    MemoryInfo,
    Region,
)
from cachecore.blocks import BlockPairs
from cachecore.build import build_block_cache_plan, default_registry, open_engine
from cachecore.collect import BlockCacheConsumer, CollectedCaches, collect
from cachecore.copying import BlockCacheCopy, BlockCopyInfo, CopyContext, CopySegment, CopySide
from cachecore.device import DeviceSpec
from cachecore.engine import CacheEngine
from cachecore.errors import (
    AgreementError,
    AllocationError,
    BlockIndexError,
    BlockPairsError,
    CacheCoreError,
    CacheLookupError,
    EngineStateError,
    LayoutError,
    MigrationError,
    NoBackendError,
    PlanError,
    PluginError,
)
from cachecore.hookspecs import hookimpl
from cachecore.kv import KvCacheConfig, kv_specs
from cachecore.layout import CacheLayout, CacheSlice, PoolSpec
from cachecore.meaning import HeadShard, Plane
from cachecore.payload import CacheDesc, CachePayload
from cachecore.plan import BlockCachePlan, GroupSpec, plan_from_specs
from cachecore.plan_set import CachePlanSet
from cachecore.policy import KvStorage, LayoutHints, LayoutPolicy, StandardLayoutPolicy
from cachecore.ranking import PluginRecord
from cachecore.reference import ByteBackend
from cachecore.registry import PluginRegistry
from cachecore.schema import (
    BlockCacheBinding,
    BlockCacheGeometry,
    BlockCacheRequest,
    BlockCacheRequestContext,
    CacheTensorSpec,
    LayerRowMap,
    StateCacheRequest,
)
from cachecore.state import StateCacheEngine
from cachecore.state_plan import StateCachePlan, plan_from_states
from cachecore.stats import EngineStats
from cachecore.stranger import warn_of_stranger
from cachecore.view import NamedCacheView

__all__ = [
    "API_VERSION",
    "COMPLETED",
    "HOST",
    "PINNED_HOST",
    "Agreement",
    "AgreementError",
    "AllocationError",
    "BackendInfo",
    "BlockCacheBinding",
    "BlockCacheConsumer",
    "BlockCacheCopy",
    "BlockCacheGeometry",
    "BlockCachePlan",
    "BlockCacheRequest",
    "BlockCacheRequestContext",
    "BlockCopyInfo",
    "BlockIndexError",
    "BlockPairs",
    "BlockPairsError",
    "ByteBackend",
    "CacheAllocation",
    "CacheBackend",
    "CacheCoreError",
    "CacheDesc",
    "CacheEngine",
    "CacheLayout",
    "CacheLookupError",
    "CachePayload",
    "CachePlanSet",
    "CacheSlice",
    "CacheTensorSpec",
    "CollectedCaches",
    "Completion",
    "CopyContext",
    "CopySegment",
    "CopySide",
    "DeviceSpec",
    "EngineStateError",
    "EngineStats",
    "GroupSpec",
    "HeadShard",
    "KvCacheConfig",
    "KvStorage",
    "LayerRowMap",
    "LayoutError",
    "LayoutHints",
    "LayoutPolicy",
    "MemoryInfo",
    "MigrationError",
    "NamedCacheView",
    "NoBackendError",
    "PlanError",
    "Plane",
    "PluginError",
    "PluginRecord",
    "PluginRegistry",
    "PoolSpec",
    "Region",
    "StandardLayoutPolicy",
    "StateCacheEngine",
    "StateCachePlan",
    "StateCacheRequest",
    "agree",
    "build_block_cache_plan",
    "collect",
    "default_registry",
    "hookimpl",
    "kv_specs",
    "open_engine",
    "plan_from_specs",
    "plan_from_states",
    "sizing",
]

warn_of_stranger()
