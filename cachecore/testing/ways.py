"""Whose copies are checked: the subject's own before all others, and what would go before them in production."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import importlib_metadata

from cachecore.copying import BlockCopyInfo, CopySide
from cachecore.probing import probe_copy
from cachecore.ranking import CopyRecord, PluginRecord

__all__ = ["Way", "Ways", "distribution_name", "own_first", "unserved", "way_lines"]

_WORDS = {
    "copy": "copy",
    "between_layouts": "copy between layouts",
    "device_ids": "copy with device ids",
    "swap_out": "swap out",
    "swap_in": "swap in",
}


def own_first(
    records: Iterable[CopyRecord], plugin: PluginRecord, first: str | None = None
) -> tuple[tuple[CopyRecord, ...], tuple[BlockCopyInfo, ...]]:
    """The records as the kit ranks them, and what an engine is given so that it ranks them so.

    ``plugin``'s own come first, then those of what it builds on, then the others, each by rank. A plugin without a
    copy of its own is checked with what an engine would take. Whoever stands behind gets a lower priority where that
    is needed; the plugin's own keep theirs, and a tie of two of them stays one. ``first`` is a distribution whose
    copies go before even ``plugin``'s.
    """
    ranked = sorted(records, key=lambda record: (-record.info.priority, record.info.name))
    named = [record for record in ranked if record.plugin.distribution == first]
    own = [record for record in ranked if _is_own(record.plugin, plugin) and record not in named]
    if not named and not own:
        return tuple(ranked), tuple(record.info for record in ranked)
    below = _requirements(plugin.distribution)
    left = [record for record in ranked if record not in named and record not in own]
    base = [record for record in left if distribution_name(record.plugin.distribution) in below]
    others = [record for record in left if record not in base]
    infos: list[BlockCopyInfo] = []
    for tier in (named, own, base, others):
        lower = min(0, infos[-1].priority - 1 - tier[0].info.priority) if infos and tier else 0
        infos += [replace(record.info, priority=record.info.priority + lower) for record in tier]
    return (*named, *own, *base, *others), tuple(infos)


def _is_own(one: PluginRecord, plugin: PluginRecord) -> bool:
    return one == plugin or (one.distribution == plugin.distribution and plugin.distribution != "unknown")


def _requirements(distribution: str) -> frozenset[str]:
    """The distributions that one needs, and those that these need; what an extra asks for is not counted."""
    found: set[str] = set()
    waiting = [distribution]
    while waiting:
        try:
            required = importlib_metadata.requires(waiting.pop()) or []
        except importlib_metadata.PackageNotFoundError:
            continue
        for line in required:
            requirement, _, marker = line.partition(";")
            if "extra" not in marker and (name := distribution_name(requirement)) not in found:
                found.add(name)
                waiting.append(name)
    return frozenset(found)


def distribution_name(requirement: str) -> str:
    """The name that a requirement starts with, as indexes compare it.

    >>> distribution_name("Cachecore_kv[testing]>=0.1")
    'cachecore-kv'
    """
    text = requirement.strip()
    end = next((at for at, letter in enumerate(text) if not (letter.isalnum() or letter in "-_.")), len(text))
    return text[:end].lower().replace("_", "-").replace(".", "-")


@dataclass(frozen=True, slots=True)
class Way:
    """A record that moved bytes in the checks, and the ``path`` that they took."""

    direction: str
    record: str
    path: str
    origin: CopyRecord | None = None


def unserved(copies: str | None, movers: set[str], where: str) -> str | None:
    """What is wrong when ``copies`` (a distribution) should be checked and others moved every block; else None."""
    if copies is None or not movers or copies in movers:
        return None
    return (
        f"no block copy of {copies} serves {where}, so none was checked; those of {', '.join(sorted(movers))} moved "
        "the blocks; `cachecore backends --check` says why"
    )


@dataclass(slots=True)
class Ways:
    """What moved bytes in the checks so far, each once. ``records`` are those installed, with their own priorities."""

    records: tuple[CopyRecord, ...] = ()
    used: dict[Way, None] = field(default_factory=dict)
    ahead: dict[tuple[str, str], tuple[CopyRecord, ...]] = field(default_factory=dict)
    """By direction and record that was checked: installed records that would go before it, or tie with it."""

    def add(self, direction: str, record: str, path: str, sides: tuple[CopySide, CopySide] | None = None) -> None:
        """Note one way; with ``sides``, ask once who else would serve them in production."""
        origin = next((one for one in self.records if one.info.name == record), None)
        self.used[Way(direction, record, path, origin)] = None
        if origin is not None and sides is not None and (direction, record) not in self.ahead:
            self.ahead[direction, record] = tuple(
                one
                for one in self.records
                if one is not origin
                and one.info.priority >= origin.info.priority
                and probe_copy(one.info, *sides) is None
            )

    @property
    def movers(self) -> set[str]:
        """Distributions whose copies moved bytes."""
        return {way.origin.plugin.distribution for way in self.used if way.origin is not None}

    def notes(self, *, joined: bool = True) -> list[str]:
        """Who would go before what was checked, in this environment; one note for all directions, or for each."""
        told: dict[str, list[str]] = {}
        for (direction, record), others in self.ahead.items():
            origin = next(one for one in self.records if one.info.name == record)
            for one in others:
                words = "goes before" if one.info.priority > origin.info.priority else "ties with"
                told.setdefault(f"{_named(one)}, {words} {_named(origin)}", []).append(_WORDS[direction])
        return [
            f"where an engine chooses among what is installed here, {text} ({which})"
            for text, directions in told.items()
            for which in ([", ".join(directions)] if joined else directions)
        ]

    def lines(self) -> list[str]:
        """What is known so far, each line once and for good."""
        ways = ({"direction": way.direction, **_data(way.record, way.origin), "paths": [way.path]} for way in self.used)
        return [*way_lines(ways), *(f"note: {note}" for note in self.notes(joined=False))]

    def to_json(self) -> dict[str, Any]:
        """``ways`` and ``outranked``, as plain data."""
        ways: dict[tuple[str, str], dict[str, Any]] = {}
        for way in self.used:
            begun = {"direction": way.direction, **_data(way.record, way.origin), "paths": []}
            ways.setdefault((way.direction, way.record), begun)["paths"].append(way.path)
        outranked = [
            {
                "direction": direction,
                "record": record,
                "by": [_data(one.info.name, one) for one in others],
            }
            for (direction, record), others in self.ahead.items()
            if others
        ]
        return {"ways": list(ways.values()), "outranked": outranked}


def way_lines(ways: Iterable[dict[str, Any]]) -> list[str]:
    """A line for each direction and record of :meth:`Ways.to_json`."""
    return [
        f"{_WORDS[way['direction']]} by {_shown(way['record'], way['distribution'], way['priority'])}: "
        + ", ".join(way["paths"])
        for way in ways
    ]


def _shown(record: str, distribution: str | None, priority: int | None) -> str:
    return record if distribution is None else f"{record} of {distribution}, priority {priority}"


def _named(one: CopyRecord) -> str:
    return _shown(one.info.name, one.plugin.distribution, one.info.priority)


def _data(record: str, origin: CopyRecord | None) -> dict[str, Any]:
    return {
        "record": record,
        "distribution": None if origin is None else origin.plugin.distribution,
        "priority": None if origin is None else origin.info.priority,
    }
