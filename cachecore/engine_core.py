"""What block engines and state engines share: opening all groups or none, finding one, stats and close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from cachecore.backend import CacheBackend, Completion
from cachecore.blocks import PairsLike
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.engine_group import EngineGroup
from cachecore.errors import CacheLookupError, EngineStateError, PlanError
from cachecore.plan_set import CachePlanSet
from cachecore.sizing import check_fit, counts_for, reserved_nbytes
from cachecore.stats import CopyStats, EngineStats
from cachecore.view import NamedCacheView, SpecViews

__all__ = ["Counts", "GroupEngine", "open_groups"]

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
) -> dict[str, EngineGroup[A]]:
    """Take memory for every group, or for none: what cannot fit is refused before anything is taken."""
    if not isinstance(backend, CacheBackend):
        raise TypeError(f"backend must be a CacheBackend, not {backend!r}")
    units = counts_for(plans, counts, "counts")
    host_units = counts_for(plans, host_counts, "host_counts")
    for plan in plans:
        reason = backend.serves_layout(plan.layout, plan.policy, plan.policy_version)
        if reason is not None:
            raise PlanError(f"group {plan.name!r}: {reason}; plan again for this backend", group=plan.name)
    _check_memory(plans, units, host_units, backend, device)
    groups: dict[str, EngineGroup[A]] = {}
    try:
        for plan in plans:
            groups[plan.name] = EngineGroup(
                plan, units[plan.name], host_units[plan.name], backend=backend, copies=copies, device=device
            )
    except BaseException:
        for group in groups.values():
            group.free()
        raise
    return groups


class GroupEngine(Generic[A]):
    """Groups of one kind on one device. ``generation`` counts up whenever views handed out become invalid."""

    def __init__(
        self, plans: CachePlanSet, groups: Mapping[str, EngineGroup[A]], backend: CacheBackend[A], device: DeviceSpec
    ) -> None:
        self.plans = plans
        self.device = device
        self.generation = 1
        self._groups = dict(groups)
        self._backend = backend
        self._closed: str | None = None
        self._views: list[SpecViews[A]] = [views for group in self._groups.values() for views in group.views()]
        self._named: NamedCacheView[A] = NamedCacheView(self._views)

    @property
    def backend(self) -> CacheBackend[A]:
        """The backend that owns the memory."""
        return self._backend

    def group(self, name: str | None = None) -> EngineGroup[A]:
        """One group's memory and movement; the name may be left out when there is only one."""
        self._check_open()
        if name is None:
            if len(self._groups) != 1:
                raise PlanError(f"this engine has groups {', '.join(self._groups) or '(none)'}; say which with group=")
            return next(iter(self._groups.values()))
        try:
            return self._groups[name]
        except KeyError:
            raise CacheLookupError(
                f"group {name!r} does not exist; the groups are {', '.join(self._groups) or '(none)'}", group=name
            ) from None

    def allocation(self, *, group: str | None = None, host: bool = False) -> Any:
        """The allocation of one tier, for transfers and tests; None when there is no host tier."""
        found = self.group(group)
        return found.host if host else found.device

    def swap_out(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Move device blocks or slots to the host tier; ids are local to each side."""
        return self.group(group).swap_out(pairs)

    def swap_in(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Move host blocks or slots to the device; ids are local to each side."""
        return self.group(group).swap_in(pairs)

    def stats(self) -> EngineStats:
        """Bytes held, ways taken, and the reason each time a slower way was."""
        self._check_open()
        groups = tuple(group.stats() for group in self._groups.values())
        slow = [(group.group, copy) for group in groups for copy in group.copies if copy.fallback]
        return EngineStats(
            self._backend.name,
            str(self.device),
            groups,
            sum(copy.num_calls for _, copy in slow),
            tuple(f"group {name!r}, {copy.direction}: {_why_slow(copy)}" for name, copy in slow),
        )

    def close(self) -> None:
        """Wait for transfers and give all memory back. Twice is once; views handed out are invalid."""
        if self._closed is not None:
            return
        self._closed = "this engine is closed; open another with open_engine()"
        self.generation += 1
        self._named.close(self._closed)
        self._views = []
        failed: list[BaseException] = []
        for group in self._groups.values():
            try:
                group.free()
            except BaseException as error:  # noqa: BLE001  # Ctrl-C too: every group is freed, then it is told
                failed.append(error)
        if failed:
            raise failed[0]

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise EngineStateError(self._closed)


def _check_memory(
    plans: CachePlanSet,
    units: Mapping[str, int],
    host_units: Mapping[str, int],
    backend: CacheBackend[Any],
    device: DeviceSpec,
) -> None:
    """On a CPU both tiers share one memory."""
    check_fit(plans, units, backend.memory(device).free_nbytes, str(device))
    if any(host_units.values()):
        host = DeviceSpec("cpu")
        free = backend.memory(host).free_nbytes
        if device.type == host.type:
            free -= reserved_nbytes(plans, units)
        check_fit(plans, host_units, free, "the host", host=True)


def _why_slow(copy: CopyStats) -> str:
    if copy.reason:
        return copy.reason
    told = "; ".join(f"{record}: {why}" for record, why in copy.passed_over) or "none is installed"
    return f"no block copy serves it ({told})"
