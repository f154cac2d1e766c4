"""Plugins as objects, registered without a distribution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, PluginRegistry, StandardLayoutPolicy, hookimpl
from cachecore.ranking import PluginRecord
from cachecore.transfer import ByteCopy

MINE = PluginRecord("mine", "cachecore-mine", "1.2")


def backend(
    name: str = "vendor", device_types: tuple[str, ...] = ("null",), priority: int = 30, **more: Any
) -> BackendInfo:
    """A record whose backend serves, unless told otherwise."""
    options = {"probe": lambda device: None, "load_policy": StandardLayoutPolicy, "load": ByteBackend, **more}
    return BackendInfo(name, device_types, priority, **options)


def block_copy(name: str = "fast", priority: int = 30, **more: Any) -> BlockCopyInfo:
    """A record whose copy serves, unless told otherwise."""
    return BlockCopyInfo(name, priority, **{"probe": lambda src, dst: None, "build": ByteCopy, **more})


class Announcing:
    """A plugin that announces what it was given."""

    def __init__(self, backends: Iterable[Any] = (), copies: Iterable[Any] = ()) -> None:
        self.backends, self.copies = backends, copies

    @hookimpl
    def cachecore_register_backends(self) -> Iterable[Any]:
        """What it was given."""
        return self.backends

    @hookimpl
    def cachecore_register_block_copies(self) -> Iterable[Any]:
        """What it was given."""
        return self.copies


def registry_of(*backends: BackendInfo, environ: Mapping[str, str] | None = None, **more: Any) -> PluginRegistry:
    """A registry with a plugin (``p0``, ``p1``, ... of ``dist-0``, ...) for each backend."""
    registry = PluginRegistry(environ=environ or {}, probe_limit_s=0.2, **more)
    for number, info in enumerate(backends):
        registry.register(Announcing([info]), PluginRecord(f"p{number}", f"dist-{number}", "1"))
    return registry


def names(records: Iterable[Any]) -> list[str]:
    """The names of backend or copy records."""
    return [record.info.name for record in records]
