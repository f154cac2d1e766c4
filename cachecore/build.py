"""One-call construction: from built operators to a plan, from a plan to a running engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from cachecore.collect import CollectedCaches, collect
from cachecore.device import DeviceSpec
from cachecore.engine import CacheEngine
from cachecore.errors import PlanError, PluginError
from cachecore.kv import KvCacheConfig, kv_specs
from cachecore.meaning import several
from cachecore.plan import GroupSpec, plan_from_specs
from cachecore.plan_set import CachePlanSet
from cachecore.policy import LayoutHints, LayoutPolicy
from cachecore.probing import load_backend, policy_of
from cachecore.registry import PluginRegistry
from cachecore.schema import BlockCacheGeometry, BlockCacheRequestContext, CacheTensorSpec
from cachecore.state_plan import AnyState, plan_from_states

__all__ = ["build_block_cache_plan", "default_registry", "open_engine"]


@cache
def default_registry() -> PluginRegistry:
    """The registry of this environment, filled on the first call."""
    registry = PluginRegistry()
    registry.load_entry_points()
    return registry


def build_block_cache_plan(
    modules: Iterable[Any] = (),
    *,
    geometry: BlockCacheGeometry,
    device: object,
    kv: KvCacheConfig | Sequence[KvCacheConfig] = (),
    states: Sequence[AnyState] = (),
    groups: Sequence[GroupSpec] = (),
    backend: str | None = None,
    policy: LayoutPolicy | None = None,
    hints: LayoutHints | None = None,
    registry: PluginRegistry | None = None,
) -> CachePlanSet:
    """Collect what built operators need, lay it out for ``device``, and bind every operator its row.

    No device is touched, so a laptop plans for a GPU. ``groups`` names groups with a geometry or a
    window of their own; any other group takes ``geometry``. Standard K/V comes first in its group.
    ``states`` (by name, or anonymous as ``(shape, dtype)``) become state groups beside the block groups.
    Bindings are handed out last and all or none.

    Raises
    ------
    PlanError, LayoutError, TypeError
        For requests that cannot be planned; no operator is bound then.
    NoBackendError
        When no installed backend claims ``device``.
    """
    target = DeviceSpec.parse(device)
    configs = (kv,) if isinstance(kv, KvCacheConfig) else several(kv, "kv")
    for config in configs:
        if not isinstance(config, KvCacheConfig):
            raise TypeError(f"kv must be a KvCacheConfig or a sequence of them, not {config!r}")
    for group in groups:
        if not isinstance(group, GroupSpec):
            raise TypeError(f"groups must be of type GroupSpec, not {group!r}")
    declared = {group.name: group for group in groups}
    if len(declared) != len(groups):
        raise PlanError(f"group names {[group.name for group in groups]} repeat; each group is declared once")
    record = None
    if policy is None:
        record = _registry(registry).plan_backend(target, backend=backend)
        loaded = policy_of(record.info)
        if isinstance(loaded, str):
            raise PluginError(f"backend {record.info.name!r} of {record.plugin.distribution}: {loaded}")
        policy = loaded
    if not isinstance(policy, LayoutPolicy):
        raise TypeError(f"policy must be a LayoutPolicy, not {policy!r}")
    known = {config.group for config in configs} | {"full"}
    geometries = dict.fromkeys(sorted(known), geometry) | {name: group.geometry for name, group in declared.items()}
    collected = collect(several(modules, "modules"), BlockCacheRequestContext(geometries))
    specs = _specs_by_group(configs, collected, geometries, geometry, policy)
    if not specs and not states:
        raise PlanError("nothing asks for a cache: no module has requests, and no kv= or states= was given")
    unused = sorted(set(declared) - set(specs))
    if unused:
        raise PlanError(f"group {unused[0]!r} is declared, but no K/V config and no operator asks for a cache in it")
    plans = tuple(
        plan_from_specs(
            listed,
            geometries.get(name, geometry),
            policy,
            group=name,
            window=declared[name].window if name in declared else None,
            hints=hints,
        )
        for name, listed in specs.items()
    )
    plan_set = CachePlanSet(
        (*plans, *plan_from_states(states, policy, hints=hints)),
        str(target),
        policy.name if record is None else record.info.name,
    )
    collected.bind()
    return plan_set


def open_engine(
    plans: CachePlanSet,
    counts: int | Mapping[str, int],
    *,
    device: object | None = None,
    host_counts: int | Mapping[str, int] = 0,
    stable_addresses: bool = False,
    backend: str | None = None,
    registry: PluginRegistry | None = None,
) -> CacheEngine[Any]:
    """Probe and rank the installed plugins for ``device`` and open an engine on the winner.

    ``device`` defaults to the one planned for; ``backend`` (or ``CACHECORE_BACKEND``) forces one.
    ``stable_addresses`` keeps addresses over :meth:`CacheEngine.sleep`, or refuses with the backend's reason.
    Raises what :meth:`PluginRegistry.select` and :class:`CacheEngine` raise.
    """
    if not isinstance(plans, CachePlanSet):
        raise TypeError(f"plans must be a CachePlanSet, not {plans!r}")
    registry = _registry(registry)
    target = plans.device if device is None else device
    selection = registry.select(target, backend=backend)
    who = f"backend {selection.chosen.info.name!r} of {selection.chosen.plugin.distribution}"
    loaded = load_backend(selection.chosen.info, who)
    return CacheEngine(
        plans,
        counts,
        backend=loaded,
        copies=registry.copy_infos(),
        device=selection.device,
        host_counts=host_counts,
        stable_addresses=stable_addresses,
    )


def _registry(given: PluginRegistry | None) -> PluginRegistry:
    if given is None:
        return default_registry()
    if not isinstance(given, PluginRegistry):
        raise TypeError(f"registry must be a PluginRegistry, not {given!r}")
    return given


def _specs_by_group(
    configs: Sequence[KvCacheConfig],
    collected: CollectedCaches,
    geometries: Mapping[str, BlockCacheGeometry],
    default: BlockCacheGeometry,
    policy: LayoutPolicy,
) -> dict[str, list[CacheTensorSpec]]:
    specs: dict[str, list[CacheTensorSpec]] = {}
    for config in configs:
        specs.setdefault(config.group, []).extend(kv_specs(config, geometries.get(config.group, default), policy))
    for group, listed in collected.specs.items():
        specs.setdefault(group, []).extend(listed)
    return specs
