"""Records with their origin, their order, and the words for why none serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import importlib_metadata

from cachecore.asking import shown, told
from cachecore.backend import API_VERSION, BackendInfo
from cachecore.copying import BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.errors import NoBackendError, PluginError

__all__ = ["BackendRecord", "CopyRecord", "PluginFailure", "PluginRecord", "Selection"]

_PIP_LINES = {"cpu": "cachecore-cpu", "cuda": "cachecore-cuda-triton", "npu": "cachecore-ascend-dlinfer"}


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """Where a plugin comes from."""

    name: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """A plugin that is not used, and why."""

    plugin: PluginRecord
    reason: str


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """A backend and the plugin that announced it."""

    info: BackendInfo
    plugin: PluginRecord


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """A copy primitive and the plugin that announced it."""

    info: BlockCopyInfo
    plugin: PluginRecord


@dataclass(frozen=True, slots=True)
class Selection:
    """Which backend serves a device, and why each other one does not."""

    device: DeviceSpec
    chosen: BackendRecord
    reason: str
    candidates: tuple[BackendRecord, ...]
    rejected: tuple[tuple[BackendRecord, str], ...]


def install_line(distribution: str) -> str:
    """How to install a distribution of this project: from a checkout, as none is published yet."""
    folder = f"./plugins/{distribution.removeprefix('cachecore-')}"
    return f"`python -m pip install {folder}` in a checkout ({distribution} is not on PyPI yet)"


def rank(record: BackendRecord) -> tuple[int, str, str]:
    """Sort key: best priority first, then by name, so that entry-point order never decides."""
    return -record.info.priority, record.info.name, record.plugin.distribution


def is_named(record: BackendRecord, forced: str) -> bool:
    """Whether ``forced`` (``name`` or ``name@distribution``) means this record."""
    if not isinstance(forced, str):
        raise TypeError(f"backend must be a name, or name@distribution, not {forced!r}")
    name, _, distribution = forced.partition("@")
    return record.info.name == name.strip() and distribution.strip() in ("", record.plugin.distribution)


def forced_name(asked: str | None, environ: Mapping[str, str]) -> str | None:
    """What the caller forces, or else ``CACHECORE_BACKEND``; blank is nothing, and stray spaces are not counted."""
    if asked is not None and not isinstance(asked, str):
        raise TypeError(f"backend must be a name, or name@distribution, not {asked!r}")
    given = (asked or "").strip() or environ.get("CACHECORE_BACKEND", "").strip()
    name, distribution = (part.strip() for part in given.partition("@")[::2])
    return f"{name}@{distribution}" if distribution else name or given or None


def claimed_twice(backends: Iterable[BackendRecord]) -> dict[str, str]:
    """Backend names that two distributions claim, with the reason why neither is used."""
    owners: dict[str, list[str]] = {}
    for record in backends:
        owners.setdefault(record.info.name, []).append(record.plugin.distribution)
    return {
        name: f"name {name!r} is claimed by {' and '.join(dists)}; force one as name@distribution"
        for name, dists in owners.items()
        if len(dists) > 1
    }


def no_backend_error(
    device: DeviceSpec,
    forced: str | None,
    rejected: Iterable[tuple[BackendRecord, str]],
    backends: Sequence[BackendRecord],
    unused: Iterable[PluginFailure],
) -> NoBackendError:
    """Every reason why nothing serves, and the pip line that would help."""
    reasons = [
        f"{record.info.name} ({record.plugin.distribution}): {why}"
        for record, why in rejected
        if not (forced and not is_named(record, forced))
    ]
    not_used = [f"{failure.plugin.name} ({failure.plugin.distribution}): {failure.reason}" for failure in unused]
    if forced and not any(is_named(record, forced) for record in backends):
        what = _not_there(forced, backends, not_used)
    else:
        what = f"backend {forced!r}, which is forced, does not serve" if forced else "no backend serves"
        what += f" {device}: {'; '.join(reasons + not_used) or 'no plugin is installed'}"
    line = _PIP_LINES.get(device.type, "cachecore-torch-default")
    there = line in {record.plugin.distribution for record in backends} or device.type == "null"
    remedy = "" if there else f" {install_line(line)} installs one for {device.type};"
    return NoBackendError(
        f"{what}{'' if what.endswith('?') else '.'}{remedy} `cachecore backends` shows all",
        device=str(device),
        reasons=(*reasons, *not_used),
        install=line,
    )


def _not_there(forced: str, backends: Sequence[BackendRecord], not_used: Sequence[str]) -> str:
    """No backend bears the forced name: which there are, which may be meant, and what could have brought it."""
    there = [record.info.name for record in backends]
    if "@" in forced:
        there = [f"{record.info.name}@{record.plugin.distribution}" for record in backends]
    close = get_close_matches(forced, there, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    told = f". Plugins that are not used: {'; '.join(not_used)}" if not_used else ""
    return f"there is no backend {forced!r}, which is forced; installed are {', '.join(there)}{meant}{told}"


def entry_points_of(group: str) -> tuple[list[importlib_metadata.EntryPoint], list[PluginFailure]]:
    """The entry points of ``group``, and the distributions whose own cannot be read: one hides no other."""
    try:
        return list(importlib_metadata.entry_points(group=group)), []
    except Exception:  # noqa: BLE001  # a damaged dist-info raises anything, and then nothing is found; look at each
        return _entry_points_one_by_one(group)


def _entry_points_one_by_one(group: str) -> tuple[list[importlib_metadata.EntryPoint], list[PluginFailure]]:
    found: list[importlib_metadata.EntryPoint] = []
    failures: list[PluginFailure] = []
    seen: set[str] = set()
    for dist in importlib_metadata.distributions():
        where = str(dist.locate_file(""))
        try:
            name, version = dist.name, dist.version
        except Exception:  # noqa: BLE001  # as above
            name, version = "unknown", "?"
        if name != "unknown" and name in seen:
            continue  # another one of this name comes first on sys.path
        seen.add(name)
        try:
            found += [entry for entry in dist.entry_points if entry.group == group]
        except Exception as error:  # noqa: BLE001  # as above
            record = PluginRecord(f"a distribution in {where}", name, version)
            failures.append(PluginFailure(record, f"entry_points.txt cannot be read: {told(error)}"))
    return found, failures


def origin_of(entry: importlib_metadata.EntryPoint) -> PluginRecord:
    """Where an entry point comes from; ``unknown`` when its dist-info is damaged."""
    dist = entry.dist
    try:
        return PluginRecord(entry.name, "unknown" if dist is None else dist.name, "?" if dist is None else dist.version)
    except Exception:  # noqa: BLE001  # releases of importlib-metadata differ, and bytes may be no text
        return PluginRecord(entry.name, "unknown", "?")


def is_limit(seconds: object) -> bool:
    """Whether a probe can be given this long."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < float("inf")


def check_info(info: BackendInfo | BlockCopyInfo) -> None:
    """Raise :class:`~cachecore.errors.PluginError` for a record that cannot be ranked or called."""
    kind = type(info).__name__
    if not isinstance(info.name, str) or not info.name:
        raise PluginError(f"{kind} has name {shown(info.name)}; expected a non-empty string")
    if isinstance(info.api_version, bool) or not isinstance(info.api_version, int) or info.api_version != API_VERSION:
        raise PluginError(
            f"{kind} {info.name!r} speaks plugin API {shown(info.api_version)}, this cachecore {API_VERSION}; "
            "install matching releases of both"
        )
    if isinstance(info.priority, bool) or not isinstance(info.priority, int):
        raise PluginError(f"{kind} {info.name!r} has priority {shown(info.priority)}; expected an integer")
    if isinstance(info, BlockCopyInfo) and info.probe_limit_s is not None and not is_limit(info.probe_limit_s):
        raise PluginError(
            f"{kind} {info.name!r} has probe_limit_s {shown(info.probe_limit_s)}; expected None or seconds above 0"
        )
    calls: tuple[str, ...] = ("probe", "build")
    if isinstance(info, BackendInfo):
        calls = ("probe", "load_policy", "load")
        types = info.device_types
        if not isinstance(types, tuple) or not types or not all(isinstance(one, str) for one in types):
            raise PluginError(f"{kind} {info.name!r} has device_types {shown(types)}; expected a tuple of strings")
    for call in calls:
        if not callable(getattr(info, call)):
            raise PluginError(f"{kind} {info.name!r}: {call} is {shown(getattr(info, call))}; expected a callable")
