"""Specs, plans, engines and operators that the tests start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachecore import (
    BlockCacheConsumer,
    BlockCacheGeometry,
    BlockCachePlan,
    BlockCacheRequest,
    ByteBackend,
    CacheEngine,
    CacheLayout,
    CachePlanSet,
    CacheTensorSpec,
    GroupSpec,
    StandardLayoutPolicy,
    StateCacheRequest,
    plan_from_specs,
    plan_from_states,
)
from cachecore.layout_kinds import block_major_layout
from cachecore.reference import BYTE_COPY

POLICY = StandardLayoutPolicy()
PAGE_4 = BlockCacheGeometry(4)


class Index:
    """An integer only through the index protocol, as numpy's are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def layer_spec(name: str = "k_cache", shape: Sequence[int] = (4, 2, 8), rows: int = 2, **more: Any) -> CacheTensorSpec:
    """A tensor found by layer: standard K/V. 4 * 2 * 8 * 2 bytes = 128 bytes a page and row unless told otherwise."""
    return CacheTensorSpec(name=name, shape=tuple(shape), **{"dtype": "float16", "row_ids": tuple(range(rows)), **more})


def consumer_spec(name: str = "index", shape: Sequence[int] = (4, 8), rows: int = 2, **more: Any) -> CacheTensorSpec:
    """A tensor found by consumer row. 4 * 8 * 1 byte = 32 bytes a page and row unless told otherwise."""
    consumer_rows = tuple(range(rows))
    return CacheTensorSpec(
        name=name,
        shape=tuple(shape),
        **{"dtype": "uint8", "row_ids": consumer_rows, "consumer_rows": consumer_rows, **more},
    )


def plan_with(
    specs: Sequence[CacheTensorSpec],
    layout: CacheLayout,
    host_layout: CacheLayout | None = None,
    *,
    geometry: BlockCacheGeometry = PAGE_4,
    group: str = "full",
    window: int | None = None,
) -> BlockCachePlan:
    """A plan with given layouts, as if the standard policy had selected them."""
    host_layout = host_layout or block_major_layout(specs, geometry.pages_per_block, like=layout)
    return BlockCachePlan(
        GroupSpec(group, geometry, window), tuple(specs), layout, host_layout, POLICY.name, POLICY.version
    )


def plan_set(*plans: BlockCachePlan) -> CachePlanSet:
    """A set for the null device."""
    return CachePlanSet(plans, "null", "bytes")


def kv_plan(
    *,
    rows: int = 2,
    geometry: BlockCacheGeometry = PAGE_4,
    group: str = "full",
    window: int | None = None,
    tag: str = "",
) -> BlockCachePlan:
    """Packed K and V of ``rows`` layers, 128 bytes a kernel page each, which is aligned to 256."""
    specs = [layer_spec(f"{name}{tag}", rows=rows) for name in ("k_cache", "v_cache")]
    return plan_from_specs(specs, geometry, POLICY, group=group, window=window)


def open_bytes(
    plans: BlockCachePlan | CachePlanSet,
    counts: int | Mapping[str, int] = 4,
    host_counts: int | Mapping[str, int] = 0,
    **more: Any,
) -> CacheEngine[Any]:
    """An engine on bytearrays."""
    plans = plans if isinstance(plans, CachePlanSet) else plan_set(plans)
    options = {"backend": ByteBackend(), "copies": [BYTE_COPY], **more}
    return CacheEngine(plans, counts, host_counts=host_counts, **options)


class Operator(BlockCacheConsumer):
    """An operator that asks for what it was given."""

    def __init__(self, *requests: BlockCacheRequest) -> None:
        self.requests = requests

    def get_block_cache_requests(self, context: Any) -> Sequence[BlockCacheRequest]:
        """What it was given."""
        return self.requests


def request(name: str = "index", shape: Sequence[int] = (4, 8), **more: Any) -> BlockCacheRequest:
    """32 bytes a page unless told otherwise."""
    return BlockCacheRequest(name=name, shape=tuple(shape), **{"dtype": "uint8", **more})


def two_groups() -> CachePlanSet:
    """Full and sliding K/V: 1,024 bytes a block on the device, 512 on the host, in each group."""
    return plan_set(kv_plan(), kv_plan(group="sliding", window=8, tag="_sliding"))


def three_groups() -> CachePlanSet:
    """The same with a state of 256 bytes a slot."""
    states = [StateCacheRequest(name="ssm", shape=(64,), dtype="float32")]
    return plan_set(*two_groups(), *plan_from_states(states, POLICY))


COUNTS = {"full": 4, "sliding": 2, "state": 3}
HOST_COUNTS = {"full": 1, "sliding": 3, "state": 2}
