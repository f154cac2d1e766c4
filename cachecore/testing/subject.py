"""What is being checked: a backend as its plugin announces it, on one device, with the copies around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from cachecore.backend import BackendInfo, CacheAllocation, CacheBackend
from cachecore.copying import BlockCopyInfo, CopySide
from cachecore.device import DeviceSpec
from cachecore.engine import CacheEngine
from cachecore.errors import NoBackendError, PlanError, PluginError
from cachecore.plan import BlockCachePlan, plan_from_specs
from cachecore.plan_set import CachePlanSet
from cachecore.policy import LayoutHints, LayoutPolicy
from cachecore.probing import PROBE_LIMIT_S, probe_backend
from cachecore.ranking import BackendRecord, CopyRecord, PluginRecord, is_named
from cachecore.registry import PluginRegistry
from cachecore.schema import BlockCacheGeometry
from cachecore.state_plan import StateCachePlan, plan_from_states
from cachecore.testing.arrays import ArrayAdapter, arrays_of
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.one_run import one_run
from cachecore.testing.samples import BLOCK_CASES, BlockCase, StateCase
from cachecore.testing.ways import Ways, own_first

__all__ = ["Subject", "find_subject"]

_PAGE_SIZES = (4, 16, 32, 64, 128, 256)
"""Tokens a page, tried in turn: kernels of some devices take coarse pages only."""


@dataclass(slots=True)
class Subject:
    """One backend on one device.

    ``copies`` are all records that an engine may use, ranked so that the backend's own are checked. ``unavailable``
    says why the device levels cannot run here. ``arrays`` replaces the adapter that is found from the views' type.
    ``ways`` are the copies that ran.
    """

    info: BackendInfo
    plugin: PluginRecord
    device: DeviceSpec
    copies: tuple[BlockCopyInfo, ...]
    unavailable: str | None = None
    arrays: ArrayAdapter | None = None
    probe_limit_s: float = PROBE_LIMIT_S
    ways: Ways = field(default_factory=Ways)
    _backend: CacheBackend[Any] | None = field(default=None, repr=False)
    _policy: LayoutPolicy | None = field(default=None, repr=False)
    _fresh: dict[str, dict[str, Any] | None] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """``name@distribution``."""
        return f"{self.info.name}@{self.plugin.distribution}"

    @property
    def policy(self) -> LayoutPolicy:
        """The policy that plans; needs no device."""
        if self._policy is None:
            self._policy = self.info.load_policy()
        return self._policy

    @property
    def backend(self) -> CacheBackend[Any]:
        """The backend, loaded once; :class:`Skipped` where its device is not."""
        if self._backend is None:
            if (reason := self.absence()) is not None:
                raise Skipped(reason)
            loaded = self.info.load()
            if not isinstance(loaded, CacheBackend):
                raise Fault("load()", expected="a CacheBackend", found=repr(loaded))
            self._backend = loaded
        return self._backend

    def absence(self) -> str | None:
        """Why nothing can be checked on the device, in the words of every check that is skipped for it; else None."""
        if self.unavailable is None and self._backend is None:
            self.unavailable = probe_backend(self.info, self.device, self.probe_limit_s)
        if self.unavailable is None:
            return None
        return f"backend {self.info.name!r} does not serve {self.device} here: {self.unavailable}"

    def adapter(self) -> ArrayAdapter:
        """How to look into the backend's arrays."""
        if self.arrays is None:
            plan = self.plan(BLOCK_CASES[0])
            allocation = self.backend.allocate(plan.layout, plan.num_entries(1), self.device)
            try:
                self.arrays = arrays_of(self.backend.row_view(allocation, 0, plan.specs[0], 0))
            finally:
                self.backend.free(allocation)
        return self.arrays

    def ask_fresh(self, mode: str) -> dict[str, Any] | None:
        """What a fresh process says of the plugin, asked once; None when it does not find it."""
        if mode not in self._fresh:
            from cachecore.testing.fresh import run_fresh  # processes are rarely asked for

            self._fresh[mode] = run_fresh(self.name, mode, str(self.device))
        return self._fresh[mode]

    def reason_against(self, capability: str) -> str | None:
        """Why the backend cannot do something; None when it says that it can."""
        return self.backend.capabilities().get(capability, "not declared")

    def need(self, capability: str) -> None:
        """Skip where the backend says that it cannot."""
        if capability not in self.backend.capabilities():
            raise Skipped(f"{capability} is not declared")
        if (reason := self.reason_against(capability)) is not None:
            raise Skipped(f"{capability} is declared unsupported: {reason}")

    def geometry(self, case: BlockCase) -> BlockCacheGeometry:
        """The finest geometry that the policy takes; :class:`Skipped` when it takes none."""
        refusal: PlanError | None = None
        for page in _PAGE_SIZES:
            geometry = BlockCacheGeometry(page * case.pages_per_block, page)
            try:
                self.policy.check_geometry(case.specs(page), geometry)
            except PlanError as error:
                refusal = refusal or error
            else:
                return geometry
        raise Skipped(f"the policy refuses every geometry of {case.name}: {refusal}")

    def plan(self, case: BlockCase, hints: LayoutHints | None = None, *, group: str = "full") -> BlockCachePlan:
        """The policy's own plan; :class:`Skipped` where the case wants one run a block, and the policy has none."""
        geometry = self.geometry(case)
        specs = case.specs(geometry.page_size)
        if case.one_run:
            return one_run(lambda hint: plan_from_specs(specs, geometry, self.policy, group=group, hints=hint))
        return plan_from_specs(specs, geometry, self.policy, group=group, hints=hints)

    def state_plan(self, case: StateCase) -> StateCachePlan:
        """The policy's own plan of one state group; skipped as a block group's is."""
        if case.one_run:
            return one_run(lambda hint: plan_from_states(case.requests, self.policy, hints=hint)[0])
        return plan_from_states(case.requests, self.policy)[0]

    def open(
        self, plan: BlockCachePlan | StateCachePlan, num_blocks: int, num_host_blocks: int = 0
    ) -> CacheEngine[Any]:
        """An engine of one group, with the copies that an application would get."""
        return self.open_groups((plan,), num_blocks, num_host_blocks)

    def open_groups(
        self,
        plans: Sequence[BlockCachePlan | StateCachePlan],
        num_blocks: int,
        num_host_blocks: int,
        *,
        stable_addresses: bool = False,
    ) -> CacheEngine[Any]:
        """An engine of several groups, each of so many blocks or slots."""
        return CacheEngine(
            CachePlanSet(tuple(plans), str(self.device), self.info.name),
            {plan.name: num_blocks for plan in plans},
            backend=self.backend,
            copies=self.copies,
            device=self.device,
            host_counts={plan.name: num_host_blocks for plan in plans},
            stable_addresses=stable_addresses,
        )

    @contextmanager
    def watch(self, engine: CacheEngine[Any], *directions: str) -> Iterator[None]:
        """Note which ways the bytes of an engine of one group took meanwhile, also where a check fails."""
        try:
            yield
        finally:
            copies = {copy.direction: copy for copy in engine.stats().groups[0].copies}
            device = self._side(engine.allocation())
            for direction in directions:
                copy = copies["copy" if direction == "device_ids" else direction]
                host = device if copy.direction == "copy" else self._side(engine.allocation(host=True))
                sides = (host, device) if copy.direction == "swap_in" else (device, host)
                self.ways.add(direction, copy.record, copy.path, sides)

    def _side(self, allocation: CacheAllocation[Any]) -> CopySide:
        return CopySide(self.backend.name, allocation.memory_kind, allocation.device, allocation.layout)

    def allocate(self, plan: BlockCachePlan, num_blocks: int) -> CacheAllocation[Any]:
        """The device tier of a plan, without an engine."""
        return self.backend.allocate(plan.layout, plan.num_entries(num_blocks), self.device)


def find_subject(
    registry: PluginRegistry, backend: str, device: object | None = None, *, copies: str | None = None
) -> Subject:
    """The backend named ``name`` or ``name@distribution``; ``device`` defaults to the first that it serves.

    ``copies`` names a distribution whose copies are checked with it, before its own.

    Raises
    ------
    NoBackendError
        When no plugin announces it; says which ones do, and why plugins failed.
    PluginError
        When two distributions do, or when no copy comes from ``copies``.
    """
    found = [record for record in registry.backends if is_named(record, backend)]
    if not found:
        raise NoBackendError(_unknown(registry, backend), reasons=tuple(one.reason for one in registry.failures))
    if len(found) > 1:
        names = " and ".join(f"{record.info.name}@{record.plugin.distribution}" for record in found)
        raise PluginError(f"backend {backend!r} is announced twice; say which: {names}")
    return _subject(found[0], registry, device, copies)


def _subject(record: BackendRecord, registry: PluginRegistry, device: object | None, first: str | None) -> Subject:
    if device is None:
        served = record.info.device_types[0]
        device = "cpu" if served == "*" else served
    enabled = registry.copy_infos()
    limit_s = registry.probe_limit_s
    installed = [
        CopyRecord(replace(one.info, probe_limit_s=limit_s), one.plugin)
        for one in registry.copies
        if one.info in enabled
    ]
    origins = sorted({one.plugin.distribution for one in installed})
    if first is not None and first not in origins:
        raise PluginError(f"no block copy comes from {first!r}; they come from the distributions {', '.join(origins)}")
    records, copies = own_first(installed, record.plugin, first)
    return Subject(
        record.info, record.plugin, DeviceSpec.parse(device), copies, probe_limit_s=limit_s, ways=Ways(records)
    )


def _unknown(registry: PluginRegistry, backend: str) -> str:
    known = ", ".join(sorted(f"{record.info.name}@{record.plugin.distribution}" for record in registry.backends))
    message = f"no installed plugin announces backend {backend!r}; there are {known}"
    failed: Sequence[str] = [
        f"{failure.plugin.name} ({failure.plugin.distribution}): {failure.reason}"
        for failure in (*registry.failures, *registry.skipped)
    ]
    return message + (f". Plugins that are not used: {'; '.join(failed)}" if failed else "")
