"""One group with random bytes in both tiers, and an oracle of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from held_copies import HeldCopies
from row_oracle import RowOracle
from samples import kv_plan

from cachecore import BlockCacheGeometry, ByteBackend, DeviceSpec
from cachecore.engine_group import EngineGroup
from cachecore.group_plan import GroupPlan
from cachecore.reference import BYTE_COPY


def opened_group(
    plan: GroupPlan | None = None,
    num_blocks: int = 4,
    num_host_blocks: int = 3,
    *,
    copies: Sequence[Any] = (BYTE_COPY,),
    backend: ByteBackend | None = None,
) -> tuple[EngineGroup[Any], RowOracle, Any]:
    """Two layers of K/V in blocks of two pages, unless told otherwise; None for the oracle of no host tier."""
    plan = plan or kv_plan(geometry=BlockCacheGeometry(8, 4))
    group = EngineGroup(
        plan,
        num_blocks,
        num_host_blocks,
        backend=backend or ByteBackend(),
        copies=copies,
        device=DeviceSpec("null"),
    )
    device, host = RowOracle(plan, group.device), group.host and RowOracle(plan, group.host, host=True)
    device.fill(1)
    if host:
        host.fill(2)
    return group, device, host


def held_group(**more: Any) -> tuple[EngineGroup[Any], RowOracle, Any, HeldCopies]:
    """As :func:`opened_group`, with copies that the test holds back."""
    copies = HeldCopies()
    group, device, host = opened_group(copies=[copies.info], **more)
    return group, device, host, copies
