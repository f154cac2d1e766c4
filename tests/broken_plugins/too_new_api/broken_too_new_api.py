"""Speaks a plugin interface newer than this core's."""

from __future__ import annotations

from cachecore import API_VERSION, BackendInfo, ByteBackend, DeviceSpec, StandardLayoutPolicy, hookimpl


def load_policy() -> StandardLayoutPolicy:
    """Never reached by a registry that refuses this plugin."""
    return StandardLayoutPolicy()


def load() -> ByteBackend:
    """Never reached by a registry that refuses this plugin."""
    return ByteBackend(load_policy())


def probe(device: DeviceSpec) -> str | None:
    """Serves."""
    return None


@hookimpl
def cachecore_register_backends() -> list[BackendInfo]:
    """One backend for the null device."""
    return [BackendInfo("too-new", ("null",), 50, probe, load_policy, load, api_version=API_VERSION + 1)]
