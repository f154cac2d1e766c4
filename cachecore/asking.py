"""Calling and showing what a stranger wrote, such that nothing it does ends the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cachecore.errors import CacheCoreError, PluginError

__all__ = ["asked", "shown", "told"]

T = TypeVar("T")


def asked(what: str, call: Callable[[], T]) -> T:
    """The answer of ``call``, which is a plugin's; ``what`` names the plugin and the method.

    Raises
    ------
    PluginError
        For whatever it raised, SystemExit too. Only cachecore's own errors and Ctrl-C pass unchanged.

    >>> asked("backend 'x' of dist-x: load()", lambda: {}["key"])
    Traceback (most recent call last):
    ...
    cachecore.errors.PluginError: backend 'x' of dist-x: load() raised KeyError: 'key'
    """
    try:
        return call()
    except (CacheCoreError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{what} raised {told(error)}") from error


def told(error: BaseException) -> str:
    """The error and what caused it, unless it says that itself; also where one cannot say what it is."""
    text = f"{type(error).__name__}: {_written(error, str)}"
    cause = error.__cause__ or error.__context__
    if cause is None:
        return text
    reason = f"{type(cause).__name__}: {_written(cause, str)}"
    return text if reason in text else f"{text} (from {reason})"


def shown(value: object) -> str:
    """What ``repr(value)`` says, also where it cannot."""
    return _written(value, repr)


def _written(value: object, write: Callable[[object], str]) -> str:
    try:
        return write(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # a stranger's __str__ may raise anything; its type is told instead
        return f"<{type(value).__name__}, whose {write.__name__}() raised {type(error).__name__}>"
