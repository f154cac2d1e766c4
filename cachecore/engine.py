"""The run-time lifecycle of a model's caches: views, copies, swaps, stats and close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from cachecore.backend import CacheBackend, Completion
from cachecore.blocks import PairsLike
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.engine_core import GroupEngine
from cachecore.errors import CacheLookupError
from cachecore.opening import Counts, open_groups
from cachecore.plan_set import CachePlanSet
from cachecore.state import StateCacheEngine
from cachecore.view import NamedCacheView, SpecViews

__all__ = ["CacheEngine"]

A = TypeVar("A")


class CacheEngine(GroupEngine[A]):
    """Owns one allocation a group and tier, and moves blocks between them.

    Gets the results of plugin discovery and never sees a registry; :func:`cachecore.open_engine`
    finds them. ``counts`` and ``host_counts`` are blocks (slots, for state groups) per group, or one
    number for a single group. State groups of the plan set are served by :attr:`states`. With
    ``stable_addresses`` the device memory keeps its addresses over :meth:`sleep`, so that captured
    graphs survive it; a backend that cannot is refused.

    Raises
    ------
    PlanError
        For counts that do not match the groups, or a plan this backend's policy did not make.
    AllocationError
        When the blocks do not fit: bytes needed, bytes there, and what would fit. Nothing stays taken.
    EngineStateError
        For ``stable_addresses`` of a backend that has none, with its reason.
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
        blocks = {plan.name: groups[plan.name] for plan in plans.blocks}
        slots = {plan.name: groups[plan.name] for plan in plans.states}
        try:
            super().__init__(plans, blocks, backend, target)
            self._states = StateCacheEngine.over(plans, slots, backend, target) if slots else None
        except BaseException:
            for group in groups.values():
                group.free()
            raise
        self._layer_caches = self._by_layer()

    @property
    def states(self) -> StateCacheEngine[A]:
        """The engine of the plan set's state groups."""
        self._check_open()
        if self._states is None:
            raise CacheLookupError("this plan set has no state groups; plan with states= to get some")
        return self._states

    @property
    def block_caches(self) -> NamedCacheView[A]:
        """Every block cache by name; ``row()`` is what an operator uses."""
        return self._named

    @property
    def layer_caches(self) -> tuple[tuple[A, ...], ...]:
        """One tuple a layer, in layer order: ``(k, v)`` or ``(k, v, quant_0, quant_1)``, as ``past_key_values``."""
        self._check_open()
        return self._layer_caches

    def copy_blocks(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Copy whole blocks on the device, ordered after queued work.

        Every id is checked on the host first; a refused copy changes nothing. ``group`` may be left
        out when there is only one.
        """
        return self.group(group).copy(pairs)

    def copy_blocks_on_device(self, ids: Any, *, group: str | None = None) -> None:
        """Copy with device-resident ``int64[2, n]`` ids: unchecked, allocation-free, -1 pads; graphs may capture it."""
        self.group(group).copy_on_device(ids)

    def zero_blocks(self, blocks: Sequence[int], *, group: str | None = None) -> Completion:
        """Zero whole device blocks, so that a reused block shows nothing of its last owner."""
        return self.group(group).zero(blocks)

    def host_blocks_in_flight(self, *, group: str | None = None) -> frozenset[int]:
        """Host blocks that a transfer still touches; do not reuse them."""
        return self.group(group).host_blocks_in_flight()

    def close(self) -> None:
        """Wait for transfers and give all memory back, states included. Twice is once."""
        try:
            super().close()
        finally:
            if self._states is not None:
                self._states.close()

    def _engines(self) -> list[GroupEngine[A]]:
        states = [] if self._states is None or self._states._closed else [self._states]
        return [self, *states]

    def _hide(self, reason: str, *, keep: bool) -> None:
        super()._hide(reason, keep=keep)
        if not keep:
            self._layer_caches = ()

    def _show(self, views: list[SpecViews[A]], *, moved: bool) -> None:
        super()._show(views, moved=moved)
        self._layer_caches = self._by_layer()

    def _by_layer(self) -> tuple[tuple[A, ...], ...]:
        by_layer: dict[int, list[A]] = {}
        for view in self._views:
            if view.spec.consumer_rows is None:
                for layer, row in zip(view.spec.row_ids, view.rows, strict=True):
                    by_layer.setdefault(layer, []).append(row)
        return tuple(tuple(by_layer[layer]) for layer in sorted(by_layer))
