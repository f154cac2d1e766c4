"""Ends the process wherever it is asked for more than its records, as a library written for a script does."""

from __future__ import annotations

from cachecore import BackendInfo, BlockCopyInfo, hookimpl


def leave(*_: object) -> None:
    """What a script does when its device is not there."""
    raise SystemExit("broken-exits has seen enough")


def serve(*_: object) -> None:
    """Serves anything."""


@hookimpl
def cachecore_register_backends() -> list[BackendInfo]:
    """Two backends for the null device: one leaves when it is probed, the other when it is used."""
    return [
        BackendInfo("exits-at-probe", ("null",), 60, leave, leave, leave),
        BackendInfo("exits-at-load", ("null",), 50, serve, leave, leave),
    ]


@hookimpl
def cachecore_register_block_copies() -> list[BlockCopyInfo]:
    """Two copies that leave in the same way."""
    return [
        BlockCopyInfo("exits-at-probe", 60, leave, leave),
        BlockCopyInfo("exits-at-build", 50, serve, leave),
    ]
