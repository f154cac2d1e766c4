"""Plugins found at run time: collect records, probe, rank, explain.

pluggy calls hooks in an undefined order over entry points, stops at the first broken plugin and
keeps silent about misspelt hooks; this module adds what is missing. A registry is an object:
nothing global is filled at import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import importlib_metadata
import pluggy

from cachecore import hookspecs
from cachecore.backend import API_VERSION, BackendInfo, BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.errors import PluginError
from cachecore.hookspecs import ENTRY_POINT_GROUP
from cachecore.probing import PROBE_LIMIT_S, probe_backend
from cachecore.ranking import (
    BackendRecord,
    CopyRecord,
    PluginFailure,
    PluginRecord,
    Selection,
    claimed_twice,
    is_named,
    no_backend_error,
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
            dist = entry.dist
            record = PluginRecord(
                entry.name, "unknown" if dist is None else dist.name, "unknown" if dist is None else dist.version
            )
            if any(plugin == record for plugin in self.plugins):
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
            self.failures.append(PluginFailure(record, f"import of {entry.value!r} failed: {_chain(error)}"))
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
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
            backends, copies = self._collected(plugin)
        except (pluggy.PluginValidationError, ValueError) as error:
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
        return backends, copies

    def _records(self, caller: pluggy.HookCaller, plugin: Any, kind: type[Any]) -> list[Any]:
        records: list[Any] = []
        for impl in caller.get_hookimpls():
            if impl.plugin is not plugin:
                continue
            try:
                returned: Any = impl.function()
                listed = None if isinstance(returned, (str, kind)) else list(returned)
            except (Exception, SystemExit) as error:
                raise PluginError(f"{caller.name}() raised {_chain(error)}") from error
            if listed is None or not all(isinstance(item, kind) for item in listed):
                raise PluginError(f"{caller.name}() returned {returned!r}; expected a sequence of {kind.__name__}")
            records.extend(listed)
        for info in records:
            _check_info(info)
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
            return candidates[0], f"forced as {forced!r}"
        infos = tuple(record.info for record in candidates)
        name = self._manager.hook.cachecore_choose_backend(device=str(device), candidates=infos)
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
        claimants = [
            record
            for record in sorted(self.backends, key=rank)
            if (is_named(record, forced) if forced else record.info.name not in refused)
            and ("*" in record.info.device_types or spec.type in record.info.device_types)
        ]
        if not claimants:
            raise no_backend_error(spec, forced, [], self.backends, [*self.failures, *self.skipped])
        policies = {(policy.name, policy.version) for policy in (record.info.load_policy() for record in claimants)}
        if len(policies) == 1 or forced:
            return claimants[0]
        named = [record for record in claimants if spec.type in record.info.device_types] or claimants
        top = [record for record in named if record.info.priority == named[0].info.priority]
        return top[0] if len(top) == 1 else self.select(spec, backend=backend).chosen

    def copy_infos(self) -> tuple[BlockCopyInfo, ...]:
        """Every copy record that is not switched off, best priority first."""
        deny = self._names("CACHECORE_DISABLE_COPIES")
        infos = [record.info for record in self.copies if record.info.name not in deny]
        return tuple(sorted(infos, key=lambda info: (-info.priority, info.name)))

    def _names(self, variable: str) -> frozenset[str]:
        return frozenset(name.strip() for name in self.environ.get(variable, "").split(",") if name.strip())


def _check_info(info: BackendInfo | BlockCopyInfo) -> None:
    kind = type(info).__name__
    if not isinstance(info.name, str) or not info.name:
        raise PluginError(f"{kind} has name {info.name!r}; expected a non-empty string")
    if isinstance(info.api_version, bool) or not isinstance(info.api_version, int) or info.api_version != API_VERSION:
        raise PluginError(
            f"{kind} {info.name!r} speaks plugin API {info.api_version!r}, this cachecore {API_VERSION}; "
            "install matching releases of both"
        )
    if isinstance(info.priority, bool) or not isinstance(info.priority, int):
        raise PluginError(f"{kind} {info.name!r} has priority {info.priority!r}; expected an integer")
    calls: tuple[str, ...] = ("probe", "build")
    if isinstance(info, BackendInfo):
        calls = ("probe", "load_policy", "load")
        types = info.device_types
        if not isinstance(types, tuple) or not types or not all(isinstance(one, str) for one in types):
            raise PluginError(f"{kind} {info.name!r} has device_types {types!r}; expected a tuple of strings")
    for call in calls:
        if not callable(getattr(info, call)):
            raise PluginError(f"{kind} {info.name!r}: {call} is {getattr(info, call)!r}; expected a callable")


def _chain(error: BaseException) -> str:
    """The error and what caused it, on one line."""
    told = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error.__context__
    return f"{told} (from {type(cause).__name__}: {cause})" if cause is not None else told
