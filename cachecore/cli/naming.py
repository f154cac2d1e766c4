"""Names in the environment's variables that match nothing: misspelt ones would be ignored silently."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from cachecore.ranking import forced_name, is_named
from cachecore.registry import PluginRegistry

__all__ = ["VARIABLES", "unmatched_names"]

VARIABLES = ("CACHECORE_BACKEND", "CACHECORE_PLUGINS", "CACHECORE_DISABLE_PLUGINS", "CACHECORE_DISABLE_COPIES")


def unmatched_names(registry: PluginRegistry) -> list[str]:
    """A sentence for every name that no plugin, backend or block copy of ``registry`` bears."""
    unused = [failure.plugin for failure in (*registry.failures, *registry.skipped)]
    plugins = sorted({record.name for record in (*registry.plugins, *unused)})
    copies = sorted({record.info.name for record in registry.copies})
    notes = []
    forced = forced_name(None, registry.environ)
    if forced is not None and not any(is_named(record, forced) for record in registry.backends):
        backends = [record.info.name for record in registry.backends]
        notes.append(_told("CACHECORE_BACKEND", forced, "backend", backends))
    for variable, kind, known in (
        ("CACHECORE_PLUGINS", "plugin", plugins),
        ("CACHECORE_DISABLE_PLUGINS", "plugin", plugins),
        ("CACHECORE_DISABLE_COPIES", "block copy", copies),
    ):
        names = [name.strip() for name in registry.environ.get(variable, "").split(",")]
        notes += [_told(variable, name, kind, known) for name in names if name and name not in known]
    return notes


def _told(variable: str, name: str, kind: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"{variable} names {name!r}, but no {kind} of that name is installed{meant}"
