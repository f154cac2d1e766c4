"""Calling code that a stranger wrote: under a time limit, with every failure turned into a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cachecore.asking import told
from cachecore.backend import BackendInfo
from cachecore.device import DeviceSpec
from cachecore.policy import LayoutPolicy

__all__ = ["PROBE_LIMIT_S", "answer_within", "policy_of", "probe_backend", "unclaimed"]

PROBE_LIMIT_S = 5.0
"""A probe that has not answered by then is excluded and named."""


def probe_backend(info: BackendInfo, device: DeviceSpec, limit_s: float = PROBE_LIMIT_S) -> str | None:
    """None when ``info`` serves ``device``, else the reason why not.

    A probe that hangs is left behind in a daemon thread: Python cannot stop it, and it must not stop us.
    """
    return unclaimed(info, device) or answer_within(lambda: info.probe(device), limit_s)


def unclaimed(info: BackendInfo, device: DeviceSpec) -> str | None:
    """None when ``info`` claims to serve the device's type, present or not, else the reason why not."""
    if "*" in info.device_types or device.type in info.device_types:
        return None
    return f"serves {', '.join(info.device_types)}, not {device.type}"


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


def policy_of(info: BackendInfo) -> LayoutPolicy | str:
    """The backend's policy, or the reason why there is none."""
    try:
        policy: Any = info.load_policy()
    except (Exception, SystemExit) as error:
        return f"load_policy() raised {told(error)}"
    return (
        policy if isinstance(policy, LayoutPolicy) else f"load_policy() returned {policy!r}, which is no LayoutPolicy"
    )
