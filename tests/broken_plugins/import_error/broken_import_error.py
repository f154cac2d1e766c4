"""Fails to import: the driver package it needs is not there."""

from __future__ import annotations

import a_driver_that_is_not_installed  # the fault

from cachecore import hookimpl


@hookimpl
def cachecore_register_backends() -> list[object]:
    """Needs the driver even to say who it is."""
    return [a_driver_that_is_not_installed.backend()]
