"""Two distributions that both claim the backend name `twin`."""

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
def cachecore_register_backends() -> list[BackendInfo]:
    """One backend for the null device."""
    return [BackendInfo("twin", ("null",), 50, probe, load_policy, load)]
