"""Plugins found at run time: collect records, probe, rank, explain.

pluggy calls hooks in an undefined order over entry points, stops at the first broken plugin and
keeps silent about misspelt hooks; this module adds what is missing. A registry is an object:
nothing global is filled at import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import importlib_metadata
import pluggy

from cachecore import hookspecs
from cachecore.asking import asked, shown, told
from cachecore.backend import BackendInfo
from cachecore.choosing import Choice
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.errors import PluginError
from cachecore.hookspecs import ENTRY_POINT_GROUP
from cachecore.probing import PROBE_LIMIT_S
from cachecore.ranking import (
    BackendRecord,
    CopyRecord,
    PluginFailure,
    PluginRecord,
    Selection,
    check_info,
    entry_points_of,
    forced_name,
    is_limit,
    origin_of,
)
from cachecore.reference import BYTE_BACKEND, BYTE_COPY

__all__ = ["PluginRegistry"]


def _core_record() -> PluginRecord:
    try:
        return PluginRecord("core", "cachecore-kv", importlib_metadata.version("cachecore-kv"))
    except importlib_metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return PluginRecord("core", "cachecore-kv", "not installed")


def _listed(returned: Any) -> list[Any] | str:
    """What a hook returned as a list; what it is instead, for anything else."""
    return list(returned) if isinstance(returned, Iterable) and not isinstance(returned, str) else shown(returned)


@dataclass(slots=True, repr=False)
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
        if not is_limit(self.probe_limit_s):
            raise TypeError(f"probe_limit_s must be seconds above 0, not {self.probe_limit_s!r}")
        self._manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        self._manager.add_hookspecs(hookspecs)
        core = _core_record()
        self.backends.append(BackendRecord(BYTE_BACKEND, core))
        self.copies.append(CopyRecord(BYTE_COPY, core))

    def __repr__(self) -> str:
        """What is registered, by name; the environment, which may hold secrets, is left out."""
        told = [f"{what} {', '.join(one.info.name for one in getattr(self, what))}" for what in ("backends", "copies")]
        for what in ("failures", "skipped"):
            told += (
                [f"{what} {', '.join(one.plugin.name for one in getattr(self, what))}"] if getattr(self, what) else []
            )
        return f"<{type(self).__name__} of {len(self.plugins)} plugins: {'; '.join(told)}>"

    def load_entry_points(self) -> None:
        """Load every plugin of the environment, one by one, sorted by name; a broken one hides no other."""
        allow, deny = self._names("CACHECORE_PLUGINS"), self._names("CACHECORE_DISABLE_PLUGINS")
        found, damaged = entry_points_of(ENTRY_POINT_GROUP)
        self.failures.extend(failure for failure in damaged if failure not in self.failures)
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
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever an import raises becomes the reason shown
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
        except KeyboardInterrupt:
            self._forget(plugin)
            raise
        except BaseException as error:
            self._forget(plugin)
            words = told(error) if not isinstance(error, (pluggy.PluginValidationError, PluginError)) else str(error)
            raise PluginError(f"plugin {record.name!r} of {record.distribution}: {words}") from error
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
            listed = asked(f"{caller.name}()", lambda: _listed(impl.function()))  # noqa: B023  # called at once
            if isinstance(listed, str) or not all(isinstance(item, kind) for item in listed):
                what = listed if isinstance(listed, str) else shown(listed)
                raise PluginError(f"{caller.name}() returned {what}; expected a sequence of {kind.__name__}")
            records.extend(listed)
        for info in records:
            check_info(info)
        return records

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
        return self._choice(device, backend).select(self._overrule)

    def plan_backend(self, device: object, *, backend: str | None = None) -> BackendRecord:
        """The backend whose policy plans for ``device``, which may be absent here.

        Nothing is probed while all claimants share one policy; else the probes decide.

        Raises
        ------
        NoBackendError
            When none claims the device's type.
        PluginError
            When claimants of one priority lay out differently and none finds its device here.
        """
        return self._choice(device, backend).plan(self._overrule)

    def _choice(self, device: object, backend: str | None) -> Choice:
        return Choice(
            DeviceSpec.parse(device),
            forced_name(backend, self.environ),
            tuple(self.backends),
            (*self.failures, *self.skipped),
            self.probe_limit_s,
        )

    def _overrule(self, device: DeviceSpec, candidates: tuple[BackendInfo, ...]) -> Any:
        hook = self._manager.hook.cachecore_choose_backend
        return asked("cachecore_choose_backend", lambda: hook(device=str(device), candidates=candidates))

    def copy_infos(self) -> tuple[BlockCopyInfo, ...]:
        """Every copy record that is not switched off, best priority first."""
        deny = self._names("CACHECORE_DISABLE_COPIES")
        infos = [
            replace(record.info, probe_limit_s=self.probe_limit_s)
            for record in self.copies
            if record.info.name not in deny
        ]
        return tuple(sorted(infos, key=lambda info: (-info.priority, info.name)))

    def with_copies_first(self, distribution: str) -> PluginRegistry:
        """The same plugins with the block copies of ``distribution`` ahead of all others, to compare backends.

        A forced backend decides whose memory is used; copies are ranked by themselves, so another
        plugin's may move its blocks. Nothing is asked or loaded again.
        """
        own = [record.info.priority for record in self.copies if record.plugin.distribution == distribution]
        others = [record.info.priority for record in self.copies if record.plugin.distribution != distribution]
        lift = max(0, max(others, default=0) + 1 - min(own, default=0))
        other = copy(self)
        other.copies = [
            CopyRecord(replace(record.info, priority=record.info.priority + lift), record.plugin)
            if record.plugin.distribution == distribution
            else record
            for record in self.copies
        ]
        return other

    def _names(self, variable: str) -> frozenset[str]:
        return frozenset(name.strip() for name in self.environ.get(variable, "").split(",") if name.strip())
