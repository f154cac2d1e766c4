"""Asks a hook for an argument that it does not have."""

from __future__ import annotations

from cachecore import BackendInfo, ByteBackend, DeviceSpec, StandardLayoutPolicy, hookimpl


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
def cachecore_register_backends(platform: str) -> list[BackendInfo]:
    """One backend for the null device."""
    return [BackendInfo("wrong-argument", ("null",), 50, probe, load_policy, load)]
