"""What a backend answers, asked such that a broken one is named and ends nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from cachecore.asking import asked, shown, told
from cachecore.backend import CacheAllocation, CacheBackend, MemoryInfo
from cachecore.device import DeviceSpec
from cachecore.errors import PluginError
from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.probing import capabilities_of
from cachecore.schema import CacheTensorSpec
from cachecore.view import SpecViews

__all__ = [
    "allocation_of",
    "check_completion",
    "memory_of",
    "reason_against",
    "reason_not_served",
    "restored",
    "stable_allocation_of",
    "survived",
    "views_of",
]

A = TypeVar("A")
T = TypeVar("T")


def allocation_of(
    backend: CacheBackend[A], layout: CacheLayout, num_entries: int, device: DeviceSpec, *, pinned: bool = False
) -> CacheAllocation[A]:
    """Memory on a device, or on the host (``pinned`` where there is such memory)."""
    what = f"backend {backend.name!r}: allocate()"
    return _checked(
        asked(what, lambda: backend.allocate(layout, num_entries, device, pinned=pinned)), layout, num_entries, what
    )


def stable_allocation_of(
    backend: CacheBackend[A], layout: CacheLayout, num_entries: int, device: DeviceSpec
) -> CacheAllocation[A]:
    """Memory whose addresses outlast a sleep."""
    what = f"backend {backend.name!r}: allocate_stable()"
    return _checked(
        asked(what, lambda: backend.allocate_stable(layout, num_entries, device)), layout, num_entries, what
    )


def restored(backend: CacheBackend[A], allocation: CacheAllocation[A]) -> CacheAllocation[A]:
    """Memory for what was released; the same object where its addresses are."""
    layout, num_entries, what = allocation.layout, allocation.num_entries, f"backend {backend.name!r}: restore()"
    return _checked(asked(what, lambda: backend.restore(allocation)), layout, num_entries, what)


def memory_of(backend: CacheBackend[Any], device: DeviceSpec) -> MemoryInfo:
    """Free and total bytes of a device."""
    what = f"backend {backend.name!r}: memory()"
    found: Any = asked(what, lambda: backend.memory(device))
    if not isinstance(found, MemoryInfo) or not all(isinstance(number, int) for number in found):
        raise PluginError(f"{what} of {device} returned {shown(found)}; expected a MemoryInfo of two integers")
    return found


def reason_against(backend: CacheBackend[Any], capability: str) -> str | None:
    """None when the backend declares that it is able, else the reason why not."""
    told_of = capabilities_of(backend).get(capability, f"the backend does not declare {capability}")
    return _reason(told_of, f"backend {backend.name!r}: capabilities()[{capability!r}]")


def reason_not_served(backend: CacheBackend[Any], plan: GroupPlan) -> str | None:
    """None when the backend serves the plan's layout, else the reason why not."""
    what = f"backend {backend.name!r}: serves_layout()"
    return _reason(asked(what, lambda: backend.serves_layout(plan.layout, plan.policy, plan.policy_version)), what)


def views_of(backend: CacheBackend[A], allocation: CacheAllocation[A], plan: GroupPlan) -> list[SpecViews[A]]:
    """Every spec with its whole tensor and its rows, made now."""
    return [
        SpecViews(
            spec,
            asked(
                f"backend {backend.name!r}: view() of cache {spec.name!r}",
                partial(backend.view, allocation, index, spec),
            ),
            tuple(_row_of(backend, allocation, index, spec, row) for row in range(spec.num_rows)),
        )
        for index, spec in enumerate(plan.specs)
    ]


def survived(what: str, call: Callable[[], T]) -> T:
    """The answer of ``call``, which does not end the application; its errors pass, a device's or the caller's."""
    try:
        return call()
    except SystemExit as error:
        raise PluginError(f"{what} raised {told(error)}") from error


def check_completion(found: object, who: str) -> None:
    """``found`` can be waited for; ``who`` names the plugin and the method that returned it."""
    wanting = [name for name in ("wait", "synchronize", "done") if not callable(getattr(found, name, None))]
    if wanting:
        raise PluginError(
            f"{who} returned {shown(found)}, which has no {'(), '.join(wanting)}(); expected a Completion, such as "
            "cachecore.COMPLETED"
        )


def _row_of(backend: CacheBackend[A], allocation: CacheAllocation[A], index: int, spec: CacheTensorSpec, row: int) -> A:
    what = f"backend {backend.name!r}: row_view() of cache {spec.name!r}"
    found: A | None = asked(what, partial(backend.row_view, allocation, index, spec, row))
    if found is None:
        raise PluginError(f"{what} returned None for row {row}; expected its tensor", cache=spec.name, row=row)
    return found


def _checked(found: Any, layout: CacheLayout, num_entries: int, what: str) -> CacheAllocation[A]:
    if not isinstance(found, CacheAllocation):
        raise PluginError(f"{what} returned {shown(found)}; expected a CacheAllocation")
    if found.freed or found.num_entries != num_entries or len(found.pools) != len(layout.pools):
        state = "freed, with" if found.freed else "with"
        raise PluginError(
            f"{what} returned an allocation {state} {found.num_entries} entries and {len(found.pools)} pools; expected "
            f"{num_entries} entries and {len(layout.pools)} pools"
        )
    return found


def _reason(found: object, what: str) -> str | None:
    if found is None or isinstance(found, str):
        return found
    raise PluginError(f"{what} returned {shown(found)}; expected None or the reason why not")
