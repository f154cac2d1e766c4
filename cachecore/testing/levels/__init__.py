"""The checks, one module a level."""

from __future__ import annotations

from cachecore.testing.checks import Check
from cachecore.testing.levels import (
    accounting,
    capabilities,
    copy,
    device_ids,
    discovery,
    errors,
    golden,
    layout,
    lifetime,
    memory,
    order,
    states,
    swap,
    views,
)

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    *discovery.CHECKS,
    *layout.CHECKS,
    *golden.CHECKS,
    *memory.CHECKS,
    *accounting.CHECKS,
    *views.CHECKS,
    *copy.CHECKS,
    *device_ids.CHECKS,
    *order.CHECKS,
    *swap.CHECKS,
    *states.CHECKS,
    *lifetime.CHECKS,
    *errors.CHECKS,
    *capabilities.CHECKS,
)
"""Every check, in level order."""
