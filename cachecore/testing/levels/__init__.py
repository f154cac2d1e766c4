"""The checks, a module or some for each level."""

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
    sleep,
    sleep_memory,
    sleep_order,
    stable,
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
    *sleep.CHECKS,
    *sleep_memory.CHECKS,
    *sleep_order.CHECKS,
    *stable.CHECKS,
    *errors.CHECKS,
    *capabilities.CHECKS,
)
"""Every check, in level order."""
