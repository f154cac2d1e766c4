"""The run-time lifecycle: views, copies, swaps, stats and close, over all groups of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from cachecore.backend import BlockCopyInfo, CacheBackend, Completion
from cachecore.blocks import PairsLike
from cachecore.device import DeviceSpec
from cachecore.engine_group import EngineGroup
from cachecore.errors import CacheLookupError, EngineStateError, PlanError
from cachecore.plan import CachePlanSet
from cachecore.sizing import check_fit, counts_for, reserved_nbytes
from cachecore.stats import EngineStats
from cachecore.view import NamedCacheView

__all__ = ["CacheEngine"]

A = TypeVar("A")
Counts = int | Mapping[str, int]


class CacheEngine(Generic[A]):
    """Owns one allocation a group and tier, and moves blocks between them.

    Gets the results of plugin discovery and never sees a registry; :func:`cachecore.open_engine`
    finds them. ``counts`` and ``host_counts`` are blocks per group, or one number for a single group.

    Raises
    ------
    PlanError
        For counts that do not match the groups, or a plan this backend's policy did not make.
    AllocationError
        When the blocks do not fit: bytes needed, bytes there, and what would fit. Nothing stays taken.
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
    ) -> None:
        self.plans = plans
        self.device = DeviceSpec.parse(plans.device if device is None else device)
        self.generation = 1
        self._backend = backend
        self._closed: str | None = None
        num_blocks = counts_for(plans, counts, "counts")
        num_host_blocks = counts_for(plans, host_counts, "host_counts")
        for plan in plans:
            reason = backend.serves_layout(plan.layout, plan.policy, plan.policy_version)
            if reason is not None:
                raise PlanError(f"group {plan.name!r}: {reason}; plan again for this backend", group=plan.name)
        self._check_memory(num_blocks, num_host_blocks)
        self._groups: dict[str, EngineGroup[A]] = {}
        try:
            for plan in plans:
                self._groups[plan.name] = EngineGroup(
                    plan,
                    num_blocks[plan.name],
                    num_host_blocks[plan.name],
                    backend=backend,
                    copies=copies,
                    device=self.device,
                )
            views = [views for group in self._groups.values() for views in group.views()]
            self.block_caches: NamedCacheView[A] = NamedCacheView(views)
        except BaseException:
            for group in self._groups.values():
                group.free()
            raise
        layers = sorted({layer for view in views if view.spec.consumer_rows is None for layer in view.spec.row_ids})
        by_layer: dict[int, list[A]] = {layer: [] for layer in layers}
        for view in views:
            if view.spec.consumer_rows is None:
                for layer, row in zip(view.spec.row_ids, view.rows, strict=True):
                    by_layer[layer].append(row)
        self._layer_caches: tuple[tuple[A, ...], ...] = tuple(tuple(by_layer[layer]) for layer in layers)

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
        return self._group(group).copy(pairs)

    def copy_blocks_on_device(self, ids: Any, *, group: str | None = None) -> None:
        """Copy with device-resident ``int64[2, n]`` ids: unchecked, allocation-free, -1 pads; graphs may capture it."""
        self._group(group).copy_on_device(ids)

    def swap_out(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Move device blocks to host blocks; ids are local to each side."""
        return self._group(group).swap_out(pairs)

    def swap_in(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Move host blocks to device blocks; ids are local to each side."""
        return self._group(group).swap_in(pairs)

    def zero_blocks(self, blocks: Sequence[int], *, group: str | None = None) -> Completion:
        """Zero whole device blocks, so that a reused block shows nothing of its last owner."""
        return self._group(group).zero(blocks)

    def host_blocks_in_flight(self, *, group: str | None = None) -> frozenset[int]:
        """Host blocks that a transfer still touches; do not reuse them."""
        return self._group(group).host_blocks_in_flight()

    def allocation(self, *, group: str | None = None, host: bool = False) -> Any:
        """The allocation of one tier, for transfers and tests; None when there is no host tier."""
        found = self._group(group)
        return found.host if host else found.device

    @property
    def backend(self) -> CacheBackend[A]:
        """The backend that owns the memory."""
        return self._backend

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
            tuple(
                f"group {name!r}, {copy.direction}: no block copy serves it ("
                + ("; ".join(f"{record}: {why}" for record, why in copy.passed_over) or "none is installed")
                + ")"
                for name, copy in slow
            ),
        )

    def close(self) -> None:
        """Wait for transfers and give all memory back. Twice is once; views handed out are invalid."""
        if self._closed is not None:
            return
        self._closed = "this engine is closed; open another with open_engine()"
        self.generation += 1
        self.block_caches.close(self._closed)
        self._layer_caches = ()
        for group in self._groups.values():
            group.free()

    def __enter__(self) -> CacheEngine[A]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_memory(self, num_blocks: Mapping[str, int], num_host_blocks: Mapping[str, int]) -> None:
        """Refuse what cannot fit before anything is taken; on a CPU both tiers share one memory."""
        check_fit(self.plans, num_blocks, self._backend.memory(self.device).free_nbytes, str(self.device))
        if any(num_host_blocks.values()):
            host = DeviceSpec("cpu")
            free = self._backend.memory(host).free_nbytes
            if self.device.type == host.type:
                free -= reserved_nbytes(self.plans, num_blocks)
            check_fit(self.plans, num_host_blocks, free, "the host", host=True)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise EngineStateError(self._closed)

    def _group(self, name: str | None) -> EngineGroup[A]:
        self._check_open()
        if name is None:
            if len(self._groups) > 1:
                raise PlanError(f"this engine has groups {', '.join(self._groups)}; say which with group=")
            return next(iter(self._groups.values()))
        try:
            return self._groups[name]
        except KeyError:
            raise CacheLookupError(
                f"group {name!r} does not exist; the groups are {', '.join(self._groups)}", group=name
            ) from None
