"""Ranks in threads that agree: pipeline stages of a small model, and what each rank returned or raised."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from samples import PAGE_4, POLICY

from cachecore import (
    CacheCoreError,
    CachePlanSet,
    KvCacheConfig,
    StateCacheRequest,
    agree,
    build_block_cache_plan,
)
from cachecore.local_ranks import local_ranks

BLOCK, HOST_BLOCK, SLOT = 512, 256, 256
"""Bytes a layer: K and V of 4 tokens, 2 heads, 8 dims in float16 are 128, aligned to 256 each on the device."""


def stage(*layers: int, states: tuple[int, ...] = (), head_dim: int = 8) -> CachePlanSet:
    """The layers of one pipeline stage, some with a recurrent state of 256 bytes."""
    ssm = StateCacheRequest(name="ssm", shape=(64,), dtype="float32", layers=states or (0,))
    return build_block_cache_plan(
        kv=[KvCacheConfig(layers=layers, dtype="float16", num_kv_heads=2, head_dim=head_dim)] if layers else [],
        states=[ssm] if states else [],
        geometry=PAGE_4,
        device="null",
        policy=POLICY,
    )


def together(step, *arguments, timeout_s=10.0):
    """``step(communicator, argument)`` in a thread a rank; what each returned or raised."""
    ranks = local_ranks(len(arguments))

    def tried(rank):
        try:
            return step(rank, arguments[rank.rank])
        except (CacheCoreError, TypeError) as error:
            return error

    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(tried, ranks))


def agreed(*ranks, **shared):
    """``agree`` on ranks given as ``(plans, memory)`` or ``(plans, memory, more)``."""

    def step(communicator, one):
        plans, memory, *more = one
        return agree(communicator, plans, memory_nbytes=memory, timeout_s=10, **shared, **(more[0] if more else {}))

    return together(step, *ranks)
