"""Plugins found at run time: collect records, probe, rank, explain.

pluggy calls hooks in an undefined order over entry points, stops at the first broken plugin and
keeps silent about misspelt hooks; this module adds what is missing. A registry is an object:
nothing global is filled at import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata
import pluggy

from cachecore import hookspecs
from cachecore.asking import told
from cachecore.backend import BackendInfo
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.errors import PluginError
from cachecore.hookspecs import ENTRY_POINT_GROUP
from cachecore.policy import LayoutPolicy
from cachecore.probing import PROBE_LIMIT_S, policy_of, probe_backend, unclaimed
from cachecore.ranking import (
    BackendRecord,
    CopyRecord,
    PluginFailure,
    PluginRecord,
    Selection,
    check_info,
    claimed_twice,
    is_named,
    no_backend_error,
    origin_of,
    rank,
)
from cachecore.reference import BYTE_BACKEND, BYTE_COPY

__all__ = ["PluginRegistry"]


def _core_record() -> PluginRecord:
    try:
        return PluginRecord("core", "cachecore-kv", importlib_metadata.version("cachecore-kv"))
    except importlib_metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return PluginRecord("core", "cachecore-kv", "not installed")


@dataclass(slots=True)
class PluginRegistry:
    """The plugins of one process.

    ``CACHECORE_PLUGINS`` (names to allow), ``CACHECORE_DISABLE_PLUGINS`` and
    ``CACHECORE_DISABLE_COPIES`` (names to deny), ``CACHECORE_BACKEND`` (the backend to force, as
    ``name`` or ``name@distribution``) are read from ``environ``; lists are comma-separated.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    probe_limit_s: float = PROBE_LIMIT_S
    backends: list[BackendRecord] = field(default_factory=list)
    copies: list[CopyRecord] = field(default_factory=list)
    plugins: list[PluginRecord] = field(default_factory=list)
    failures: list[PluginFailure] = field(default_factory=list)
    skipped: list[PluginFailure] = field(default_factory=list)
    _manager: pluggy.PluginManager = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        self._manager.add_hookspecs(hookspecs)
        core = _core_record()
        self.backends.append(BackendRecord(BYTE_BACKEND, core))
        self.copies.append(CopyRecord(BYTE_COPY, core))

    # -- finding -------------------------------------------------------------------------------

    def load_entry_points(self) -> None:
        """Load every plugin of the environment, one by one, sorted by name; a broken one hides no other."""
        allow, deny = self._names("CACHECORE_PLUGINS"), self._names("CACHECORE_DISABLE_PLUGINS")
        found = importlib_metadata.entry_points(group=ENTRY_POINT_GROUP)
        for entry in sorted(found, key=lambda entry: (entry.name, entry.value)):
            record = origin_of(entry)
            if record in (*self.plugins, *(failure.plugin for failure in (*self.failures, *self.skipped))):
                continue  # the same distribution met twice on sys.path
            if entry.name in deny:
                self.skipped.append(PluginFailure(record, "denied by CACHECORE_DISABLE_PLUGINS"))
            elif allow and entry.name not in allow:
                self.skipped.append(PluginFailure(record, "not allowed by CACHECORE_PLUGINS"))
            else:
                self._load(entry, record)

    def _load(self, entry: importlib_metadata.EntryPoint, record: PluginRecord) -> None:
        try:
            plugin = entry.load()
        except (Exception, SystemExit) as error:  # whatever an import raises becomes the reason shown
            self.failures.append(PluginFailure(record, f"import of {entry.value!r} failed: {told(error)}"))
            return
        try:
            self.register(plugin, record)
        except PluginError as error:
            self.failures.append(PluginFailure(record, str(error)))

    def register(self, plugin: Any, record: PluginRecord) -> None:
        """Add one plugin (a module or an object); one that fails validation leaves no trace.

        Raises
        ------
        PluginError
            For a misspelt hook, wrong arguments, a hook that raises, or a wrong return.
        """
        name = f"{record.distribution}:{record.name}"
        if self._manager.is_registered(plugin) or self._manager.has_plugin(name):
            raise PluginError(f"plugin {record.name!r} of {record.distribution} is registered already")
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
            backends, copies = self._collected(plugin)
        except (pluggy.PluginValidationError, ValueError, PluginError) as error:
            self._forget(plugin)
            raise PluginError(f"plugin {record.name!r} of {record.distribution}: {error}") from error
        except BaseException:
            self._forget(plugin)
            raise
        self.plugins.append(record)
        self.backends.extend(BackendRecord(info, record) for info in backends)
        self.copies.extend(CopyRecord(info, record) for info in copies)

    def _forget(self, plugin: Any) -> None:
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)
        # check_pending() complains of every pending hook of every plugin, so an unknown one must go.
        for name in [name for name in vars(self._manager.hook) if name.startswith("cachecore_")]:
            caller = getattr(self._manager.hook, name)
            if not caller.has_spec() and not caller.get_hookimpls():
                delattr(self._manager.hook, name)

    def _collected(self, plugin: Any) -> tuple[list[BackendInfo], list[BlockCopyInfo]]:
        hook = self._manager.hook
        backends = self._records(hook.cachecore_register_backends, plugin, BackendInfo)
        copies = self._records(hook.cachecore_register_block_copies, plugin, BlockCopyInfo)
        for names in ([info.name for info in backends], [info.name for info in copies]):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise PluginError(f"{twice!r} is announced twice; give every record a name of its own")
        return backends, copies

    def _records(self, caller: pluggy.HookCaller, plugin: Any, kind: type[Any]) -> list[Any]:
        records: list[Any] = []
        for impl in caller.get_hookimpls():
            if impl.plugin is not plugin:
                continue
            try:
                returned: Any = impl.function()
                listed = list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str) else None
            except (Exception, SystemExit) as error:
                raise PluginError(f"{caller.name}() raised {told(error)}") from error
            if listed is None or not all(isinstance(item, kind) for item in listed):
                raise PluginError(f"{caller.name}() returned {returned!r}; expected a sequence of {kind.__name__}")
            records.extend(listed)
        for info in records:
            check_info(info)
        return records

    # -- choosing ------------------------------------------------------------------------------

    def select(self, device: object, *, backend: str | None = None) -> Selection:
        """The backend that serves ``device``: probed, ranked by priority, or forced.

        ``backend`` (or ``CACHECORE_BACKEND``) forces one by ``name`` or ``name@distribution``.

        Raises
        ------
        NoBackendError
            When none serves, with every reason and the pip line that would help; also for a forced
            one that cannot serve: there is no silent fallback, and none from an accelerator to CPU.
        PluginError
            When two serve with one priority.
        """
        spec = DeviceSpec.parse(device)
        forced = backend or self.environ.get("CACHECORE_BACKEND") or None
        refused = claimed_twice(self.backends)
        candidates: list[BackendRecord] = []
        rejected: list[tuple[BackendRecord, str]] = []
        for record in sorted(self.backends, key=rank):
            if forced and not is_named(record, forced):
                rejected.append((record, f"backend {forced!r} is forced"))
                continue
            reason = None if forced and "@" in forced else refused.get(record.info.name)
            reason = reason or probe_backend(record.info, spec, self.probe_limit_s)
            if reason is None:
                candidates.append(record)
            else:
                rejected.append((record, reason))
        if not candidates:
            raise no_backend_error(spec, forced, rejected, self.backends, [*self.failures, *self.skipped])
        chosen, why = self._winner(spec, candidates, forced)
        rejected.extend(
            (record, f"priority {record.info.priority}, {chosen.info.name!r} has {chosen.info.priority}")
            for record in candidates
            if record is not chosen
        )
        return Selection(spec, chosen, why, tuple(candidates), tuple(rejected))

    def _winner(
        self, device: DeviceSpec, candidates: Sequence[BackendRecord], forced: str | None
    ) -> tuple[BackendRecord, str]:
        if forced:
            if len(candidates) > 1:
                raise PluginError(
                    f"{forced!r} names {len(candidates)} backends of one distribution; uninstall one plugin"
                )
            return candidates[0], f"forced as {forced!r}"
        infos = tuple(record.info for record in candidates)
        try:
            name = self._manager.hook.cachecore_choose_backend(device=str(device), candidates=infos)
        except (Exception, SystemExit) as error:
            raise PluginError(f"cachecore_choose_backend raised {told(error)}") from error
        if name is not None:
            for record in candidates:
                if record.info.name == name:
                    return record, "chosen by the application's cachecore_choose_backend"
            raise PluginError(
                f"cachecore_choose_backend returned {name!r} for {device}; expected None or one of "
                f"{', '.join(info.name for info in infos)}"
            )
        best = candidates[0]
        if len(candidates) > 1 and candidates[1].info.priority == best.info.priority:
            names = " and ".join(f"{record.info.name!r} ({record.plugin.distribution})" for record in candidates[:2])
            raise PluginError(
                f"backends {names} both serve {device} with priority {best.info.priority}; "
                "say which with CACHECORE_BACKEND"
            )
        others = ", ".join(f"{record.info.name} {record.info.priority}" for record in candidates[1:])
        return best, f"priority {best.info.priority}" + (
            f", ahead of {others}" if others else ", the only one that serves"
        )

    def plan_backend(self, device: object, *, backend: str | None = None) -> BackendRecord:
        """The backend whose policy plans for ``device``, which may be absent here.

        Nothing is probed while all claimants share one policy; else the probes decide.
        """
        spec = DeviceSpec.parse(device)
        forced = backend or self.environ.get("CACHECORE_BACKEND") or None
        refused = claimed_twice(self.backends)
        claimants: list[BackendRecord] = []
        rejected: list[tuple[BackendRecord, str]] = []
        policies: set[tuple[str, str]] = set()
        for record in sorted(self.backends, key=rank):
            if forced and not is_named(record, forced):
                continue
            reason = None if forced and "@" in forced else refused.get(record.info.name)
            reason = reason or unclaimed(record.info, spec)
            policy = None if reason else policy_of(record.info)
            if isinstance(policy, LayoutPolicy):
                claimants.append(record)
                policies.add((policy.name, policy.version))
            else:
                rejected.append((record, reason or str(policy)))
        if not claimants:
            raise no_backend_error(spec, forced, rejected, self.backends, [*self.failures, *self.skipped])
        named = [record for record in claimants if spec.type in record.info.device_types] or claimants
        if len(policies) == 1 or forced:
            return named[0]
        top = [record for record in named if record.info.priority == named[0].info.priority]
        return top[0] if len(top) == 1 else self.select(spec, backend=backend).chosen

    def copy_infos(self) -> tuple[BlockCopyInfo, ...]:
        """Every copy record that is not switched off, best priority first."""
        deny = self._names("CACHECORE_DISABLE_COPIES")
        infos = [record.info for record in self.copies if record.info.name not in deny]
        return tuple(sorted(infos, key=lambda info: (-info.priority, info.name)))

    def _names(self, variable: str) -> frozenset[str]:
        return frozenset(name.strip() for name in self.environ.get(variable, "").split(",") if name.strip())
