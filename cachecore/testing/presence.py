"""Whether the device that is asked for is there: a run of tests that skipped all of its levels is no success."""

from __future__ import annotations

from cachecore.testing.checks import Check, Trial
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.subject import Subject

__all__ = ["presence"]


def presence(*, optional: bool) -> Trial:
    """A trial before all others: it fails where the device is not served, or is skipped where it may be absent."""
    return Trial(Check("device", "is-served", _may_be_served if optional else _is_served))


def _is_served(subject: Subject) -> str | None:
    """The backend serves the device, so that the levels that need it are checked."""
    if (absence := subject.absence()) is not None:
        raise Fault(
            f"{absence}. Nothing that needs the device was checked. Run where it is, or choose the levels that need "
            "none, --cachecore-level discovery --cachecore-level layout --cachecore-level golden; where it may be "
            "absent, such as a CI without hardware, say so with cachecore_device_optional = true in pytest's "
            "settings, or --cachecore-device-optional"
        )
    return None


def _may_be_served(subject: Subject) -> str | None:
    """The backend serves the device, or that is said loudly."""
    if (absence := subject.absence()) is not None:
        raise Skipped(absence)
    return None
