"""Calls to a peer, each in a thread of its own: torch cannot give up one call without closing every connection.

A call to a rank that never comes waits for ever. When the interpreter ends, such a call is woken and
its thread joined: a thread that comes back from torch into an interpreter that is being torn down
ends the process with "terminate called without an active exception".
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch

__all__ = ["Outcome", "PeerCalls", "next_outcome"]

Outcome = str | Exception

_SHORTEST = timedelta(milliseconds=1)
_UNUSED_TAG = (1 << 31) - 1
_JOIN_S = 5.0
"""Waking takes milliseconds; a call on a device that hangs is left behind after this."""

_registered = threading.Lock()
_unfinished: dict[threading.Thread, PeerCalls] = {}


class PeerCalls:
    """The calls of one communicator over ``group``, whose tensors are on ``device``."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self._device = device

    def start(self, peer: int, work: Callable[[], str], outcomes: SimpleQueue[tuple[int, Outcome]]) -> None:
        """Run ``work``; what it returns or raises is put in ``outcomes`` with its ``peer``."""

        def run() -> None:
            try:
                outcome: Outcome = work()
            except Exception as error:  # noqa: BLE001  # whatever a backend raises, the waiting rank tells it
                outcome = error
            outcomes.put((peer, outcome))
            _unfinished.pop(threading.current_thread(), None)

        if _registered.acquire(blocking=False):
            atexit.register(_end_unfinished)  # once a process; before the interpreter is torn down
        thread = threading.Thread(target=run, name=f"cachecore-rank-{peer}", daemon=True)
        _unfinished[thread] = self
        thread.start()

    def wake(self) -> None:
        """Make every pending call fail. The group is of no use afterwards."""
        with suppress(Exception):  # running out of time is the purpose, and a group that is gone keeps nobody
            if self._device.type == "cpu":
                # gloo closes all connections of a group when one call to it runs out of time
                peer = (self._group.rank() + 1) % self._group.size()
                self._group.recv([torch.zeros(1)], peer, _UNUSED_TAG).wait(_SHORTEST)
            else:
                self._group.abort()


def next_outcome(outcomes: SimpleQueue[tuple[int, Outcome]], deadline: float) -> tuple[int, Outcome] | None:
    """The next peer that is done, or None at ``deadline`` (of the monotonic clock)."""
    try:
        return outcomes.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        return None


def _end_unfinished() -> None:
    left = dict(_unfinished)
    for calls in set(left.values()):
        calls.wake()
    deadline = time.monotonic() + _JOIN_S
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
