"""A probe that never answers, as a driver waiting for a lost device does."""

from __future__ import annotations

from threading import Event

from cachecore import BackendInfo, ByteBackend, DeviceSpec, StandardLayoutPolicy, hookimpl


def load_policy() -> StandardLayoutPolicy:
    """Never reached by a registry that refuses this plugin."""
    return StandardLayoutPolicy()


def load() -> ByteBackend:
    """Never reached by a registry that refuses this plugin."""
    return ByteBackend(load_policy())


def probe(device: DeviceSpec) -> str | None:
    """Waits for what never comes."""
    Event().wait()
    return None


@hookimpl
def cachecore_register_backends() -> list[BackendInfo]:
    """One backend for the null device."""
    return [BackendInfo("probe-hangs", ("null",), 50, probe, load_policy, load)]
