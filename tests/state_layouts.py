"""State plans in both layouts, and engines over them, that the tests of states start from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cachecore import ByteBackend, CachePlanSet, StandardLayoutPolicy, StateCacheEngine, StateCacheRequest
from cachecore.layout_kinds import contiguous_state_layout
from cachecore.reference import BYTE_COPY
from cachecore.state_plan import plan_from_states


class ContiguousStates(StandardLayoutPolicy):
    """States as dense pools, one each, as some devices want them."""

    name = "contiguous-states"

    def select_state_layout(self, specs: Any, hints: Any) -> Any:
        """One pool a state."""
        return contiguous_state_layout(specs, base_alignment=hints.base_alignment)


POLICIES = [
    pytest.param(StandardLayoutPolicy(), id="packed"),
    pytest.param(ContiguousStates(), id="contiguous"),
]

REQUESTS = (
    # 5 * 2 = 10 bytes a row, 33 * 4 = 132: neither divides the packed slot
    StateCacheRequest(name="conv", shape=(5,), dtype="float16", alignment=16, layers=(4, 0)),
    StateCacheRequest(name="ssm", shape=(3, 11), dtype="float32", alignment=64, layers=(0, 2, 4)),
    StateCacheRequest(name="global", shape=(7,), dtype="uint8"),
)


def state_plans(policy: Any, requests: Sequence[StateCacheRequest] = REQUESTS) -> CachePlanSet:
    """A plan set of states alone."""
    return CachePlanSet(plan_from_states(requests, policy), "null", "bytes")


def open_states(
    policy: Any,
    num_slots: Any = 6,
    num_host_slots: Any = 0,
    *,
    requests: Sequence[StateCacheRequest] = REQUESTS,
    backend: ByteBackend | None = None,
    copies: Sequence[Any] = (BYTE_COPY,),
) -> StateCacheEngine[Any]:
    """An engine on bytearrays."""
    return StateCacheEngine(
        state_plans(policy, requests),
        num_slots,
        backend=backend or ByteBackend(policy),
        copies=copies,
        host_counts=num_host_slots,
    )
