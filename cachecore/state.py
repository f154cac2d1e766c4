"""State caches: slots of recurrent, convolution and window states, zeroed, copied and swapped in batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

from cachecore.backend import CacheBackend, Completion
from cachecore.blocks import PairsLike
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.engine_core import GroupEngine
from cachecore.engine_group import EngineGroup
from cachecore.errors import PlanError
from cachecore.opening import Counts, open_groups
from cachecore.plan_set import CachePlanSet
from cachecore.view import NamedCacheView

__all__ = ["StateCacheEngine"]

A = TypeVar("A")


class StateCacheEngine(GroupEngine[A]):
    """Owns the slots of a plan set's state groups. Same layouts, copies and guarantees as blocks.

    A model with block groups too gets this engine as :attr:`cachecore.CacheEngine.states`; made
    directly, it serves a plan set of state groups alone.
    """

    def __init__(
        self,
        plans: CachePlanSet,
        counts: Counts,
        *,
        backend: CacheBackend[A],
        copies: Sequence[BlockCopyInfo],
        device: object | None = None,
        host_counts: Counts = 0,
        stable_addresses: bool = False,
    ) -> None:
        if not isinstance(plans, CachePlanSet):
            raise TypeError(f"plans must be a CachePlanSet, not {plans!r}")
        if plans.blocks:
            names = ", ".join(plan.name for plan in plans.blocks)
            raise PlanError(f"this plan set has block groups ({names}); open a CacheEngine and use its states")
        target = DeviceSpec.parse(plans.device if device is None else device)
        groups = open_groups(
            plans,
            counts,
            host_counts,
            backend=backend,
            copies=copies,
            device=target,
            stable_addresses=stable_addresses,
        )
        try:
            super().__init__(plans, groups, backend, target)
        except BaseException:
            for group in groups.values():
                group.free()
            raise

    @classmethod
    def over(
        cls, plans: CachePlanSet, groups: Mapping[str, EngineGroup[A]], backend: CacheBackend[A], device: DeviceSpec
    ) -> Self:
        """An engine over groups that are open already; it owns them, and sleeps with the engine that opened them."""
        engine = cls.__new__(cls)
        GroupEngine.__init__(engine, plans, groups, backend, device)
        engine._led = True
        return engine

    @property
    def state_caches(self) -> NamedCacheView[A]:
        """Every state by name, ``(rows, slots, *shape)``; ``layer(name, id)`` is one layer's ``(slots, *shape)``."""
        return self._named

    def zero_slots(self, slots: Sequence[int], *, group: str | None = None) -> Completion:
        """Zero slots for new sequences; the cost grows with the slots named, not with the pool."""
        return self.group(group).zero(slots)

    def copy_slots(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Copy whole slots on the device; sources may repeat, destinations may not, and none is both."""
        return self.group(group).copy(pairs)

    def copy_slots_on_device(self, ids: Any, *, group: str | None = None) -> None:
        """Copy with device-resident ``int64[2, n]`` ids: unchecked, -1 pads; graphs may capture it."""
        self.group(group).copy_on_device(ids)

    def host_slots_in_flight(self, *, group: str | None = None) -> frozenset[int]:
        """Host slots that a transfer still touches; do not reuse them."""
        return self.group(group).host_blocks_in_flight()
