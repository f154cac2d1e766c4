"""The unrelated distribution that owns our import name on PyPI, found and named when it stands beside ours."""

from __future__ import annotations

import os
import sys
import warnings

__all__ = ["stranger_distribution", "warn_of_stranger"]

_OURS = "cachecore-kv"


def stranger_distribution() -> dict[str, str] | None:
    """Its name and version, and what to do; None when it is not installed."""
    if not any(_holds_stranger(folder) for folder in sys.path):
        return None
    import importlib_metadata  # some 15 ms, which the import of cachecore pays only when there is something to say

    try:
        version = importlib_metadata.distribution("cachecore").version
    except importlib_metadata.PackageNotFoundError:
        return None
    except Exception:  # noqa: BLE001  # its metadata is damaged; importing cachecore must not fail for that
        version = "of an unknown version"
    return {
        "distribution": "cachecore",
        "version": version,
        "advice": f"distribution 'cachecore' {version} is installed, a stranger's package that is imported as "
        f"cachecore too; whichever was installed last overwrote the other's files. Run `python -m pip uninstall "
        f"cachecore` and then `python -m pip install --force-reinstall {_OURS}` (from a checkout: `.`)",
    }


def warn_of_stranger() -> None:
    """Say so once, where the import is, when the two are mixed."""
    found = stranger_distribution()
    if found is not None:
        warnings.warn(found["advice"], RuntimeWarning, stacklevel=3)


def _holds_stranger(folder: str) -> bool:
    try:
        names = os.listdir(folder or ".")
    except OSError:  # a zip file, or a folder that is not there
        return False
    return any(name.startswith("cachecore-") and name.endswith((".dist-info", ".egg-info")) for name in names)
