"""Taking memory for all groups of an engine, or for none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from cachecore.answers import memory_of, reason_against, reason_not_served
from cachecore.backend import CacheBackend
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.engine_group import EngineGroup
from cachecore.errors import EngineStateError, PlanError, PluginError
from cachecore.plan_set import CachePlanSet
from cachecore.sizing import check_fit, counts_for, reserved_nbytes

__all__ = ["Counts", "open_groups"]

A = TypeVar("A")
Counts = int | Mapping[str, int]
"""Blocks or slots per group, or one number where there is a single group."""


def open_groups(
    plans: CachePlanSet,
    counts: Counts,
    host_counts: Counts,
    *,
    backend: CacheBackend[A],
    copies: Sequence[BlockCopyInfo],
    device: DeviceSpec,
    stable_addresses: bool = False,
) -> dict[str, EngineGroup[A]]:
    """Take memory for every group, or for none: what cannot fit is refused before anything is taken."""
    if not isinstance(backend, CacheBackend):
        raise TypeError(f"backend must be a CacheBackend, not {backend!r}")
    if not isinstance(getattr(backend, "name", None), str):
        raise PluginError(
            f'a backend of type {type(backend).__name__} has no name; expected `name = "..."` in its class'
        )
    if not isinstance(stable_addresses, bool):
        raise TypeError(f"stable_addresses must be a bool, not {stable_addresses!r}")
    units = counts_for(plans, counts, "counts")
    host_units = counts_for(plans, host_counts, "host_counts")
    for plan in plans:
        reason = reason_not_served(backend, plan)
        if reason is not None:
            raise PlanError(f"group {plan.name!r}: {reason}; plan again for this backend", group=plan.name)
    if stable_addresses and (why := reason_against(backend, "stable_addresses")) is not None:
        raise EngineStateError(
            f"stable_addresses=True, but backend {backend.name!r} cannot keep addresses over sleep: {why}; leave it "
            "out, and take views anew when `generation` has changed"
        )
    _check_memory(plans, units, host_units, backend, device)
    groups: dict[str, EngineGroup[A]] = {}
    try:
        for plan in plans:
            groups[plan.name] = EngineGroup(
                plan,
                units[plan.name],
                host_units[plan.name],
                backend=backend,
                copies=copies,
                device=device,
                stable_addresses=stable_addresses,
            )
    except BaseException:
        for group in groups.values():
            group.free()
        raise
    return groups


def _check_memory(
    plans: CachePlanSet,
    units: Mapping[str, int],
    host_units: Mapping[str, int],
    backend: CacheBackend[Any],
    device: DeviceSpec,
) -> None:
    """On a CPU both tiers share one memory."""
    check_fit(plans, units, memory_of(backend, device).free_nbytes, str(device))
    if any(host_units.values()):
        host = DeviceSpec("cpu")
        free = memory_of(backend, host).free_nbytes
        if device.type == host.type:
            free -= reserved_nbytes(plans, units)
        check_fit(plans, host_units, free, "the host", host=True)
