"""The hooks a plugin may implement. With :mod:`cachecore.registry`, the only users of pluggy.

Hooks run while an engine is built, never in a step. A plugin is a module named by an entry point in
group ``cachecore``; it marks its functions with ``@cachecore.hookimpl``.
"""

from __future__ import annotations

from collections.abc import Sequence

import pluggy

from cachecore.backend import BackendInfo
from cachecore.copying import BlockCopyInfo

__all__ = [
    "ENTRY_POINT_GROUP",
    "cachecore_choose_backend",
    "cachecore_register_backends",
    "cachecore_register_block_copies",
    "hookimpl",
]

ENTRY_POINT_GROUP = "cachecore"
"""The entry-point group of plugins, and pluggy's project name."""

hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)
"""Marks a plugin's function as the implementation of a hook."""


@hookspec
def cachecore_register_backends() -> Sequence[BackendInfo]:  # type: ignore[empty-body]  # a hook has no body
    """Announce the backends of this plugin.

    Import no driver and no array library here: ``probe``, ``load_policy`` and ``load`` do that when asked.
    """


@hookspec
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:  # type: ignore[empty-body]  # a hook has no body
    """Announce copy primitives, a backend's own included, also from plugins that are no backend."""


@hookspec(firstresult=True)
def cachecore_choose_backend(device: str, candidates: tuple[BackendInfo, ...]) -> str | None:
    """Overrule the ranking for ``device`` (e.g. ``"cuda:0"``).

    ``candidates`` passed their probe, best first. Return one's name, or None for no opinion.
    For host applications; a hardware plugin states its ``priority`` instead.
    """
