"""The unrelated distribution that owns our import name on PyPI, found and named when it stands beside ours."""

from __future__ import annotations

import warnings

import importlib_metadata

__all__ = ["stranger_distribution", "warn_of_stranger"]

DISTRIBUTION = "cachecore-kv"


def stranger_distribution() -> dict[str, str] | None:
    """Its name and version, and what to do; None when it is not installed."""
    try:
        found = importlib_metadata.distribution("cachecore")
    except importlib_metadata.PackageNotFoundError:
        return None
    return {
        "distribution": found.name,
        "version": found.version,
        "advice": f"distribution {found.name!r} {found.version} is installed, a stranger's package that is imported as "
        f"cachecore too; whichever was installed last overwrote the other's files. Run `python -m pip uninstall "
        f"cachecore` and then `python -m pip install --force-reinstall {DISTRIBUTION}`",
    }


def warn_of_stranger() -> None:
    """Say so once, where the import is, when the two are mixed."""
    found = stranger_distribution()
    if found is not None:
        warnings.warn(found["advice"], RuntimeWarning, stacklevel=3)
