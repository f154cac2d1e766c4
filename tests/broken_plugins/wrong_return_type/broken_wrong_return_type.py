"""Returns a plain dict where records are expected."""

from __future__ import annotations

from cachecore import hookimpl


@hookimpl
def cachecore_register_backends() -> list[dict[str, object]]:
    """No BackendInfo anywhere."""
    return [{"name": "wrong-return-type", "device_types": ["null"], "priority": 50}]
