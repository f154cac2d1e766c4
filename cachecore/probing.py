"""Calling code that a stranger wrote: under a time limit, with every failure turned into a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cachecore.backend import BackendInfo
from cachecore.device import DeviceSpec

__all__ = ["PROBE_LIMIT_S", "answer_within", "probe_backend"]

PROBE_LIMIT_S = 5.0
"""A probe that has not answered by then is excluded and named."""


def probe_backend(info: BackendInfo, device: DeviceSpec, limit_s: float = PROBE_LIMIT_S) -> str | None:
    """None when ``info`` serves ``device``, else the reason why not.

    A probe that hangs is left behind in a daemon thread: Python cannot stop it, and it must not stop us.
    """
    if "*" not in info.device_types and device.type not in info.device_types:
        return f"serves {', '.join(info.device_types)}, not {device.type}"
    return answer_within(lambda: info.probe(device), limit_s)


def answer_within(probe: Callable[[], object], limit_s: float) -> str | None:
    """Run ``probe`` in a thread; None, its reason, or what went wrong with it."""
    answer: list[str | None] = []

    def ask() -> None:
        try:
            result = probe()
        except BaseException as error:  # a probe may raise anything, SystemExit too; it becomes the reason
            answer.append(f"probe raised {type(error).__name__}: {error}")
            return
        if result is None or isinstance(result, str):
            answer.append(result)
        else:
            answer.append(f"probe returned {result!r}; expected None or the reason why not")

    thread = threading.Thread(target=ask, name="cachecore-probe", daemon=True)
    thread.start()
    thread.join(limit_s)
    return answer[0] if answer else f"probe did not answer within {limit_s:g} s"
