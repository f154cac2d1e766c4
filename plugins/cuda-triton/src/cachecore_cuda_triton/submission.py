"""Uploads and events queued by plain driver calls, which cost half of what torch's do: no allocation, no new objects.

What they need (page-locked slots, events) is made once. Measured: ``NOTES.md``.
"""

from __future__ import annotations

import ctypes
from array import array
from functools import cache
from threading import Lock

import torch

from cachecore_cuda_triton.libcuda import check, libcuda

__all__ = ["IdRing", "id_ring", "make_event", "record", "wait"]

_NO_TIMING = 2
"""``CU_EVENT_DISABLE_TIMING``."""

_SLOTS, _SLOT_IDS = 64, 4096
"""Uploads under way at once, and ids of one: 2 MiB on each side."""


class IdRing:
    """Page-locked slots and their twins on the device: ids go up without an allocation and without waiting."""

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self._host = torch.empty((_SLOTS, _SLOT_IDS), dtype=torch.int64, pin_memory=device.type == "cuda")
            self._ids = torch.empty((_SLOTS, _SLOT_IDS), dtype=torch.int64, device=device)
        self._events = [make_event() for _ in range(_SLOTS)]
        self._turn = 0
        self._held = [False] * _SLOTS
        self._lock = Lock()
        self._upload = libcuda().cuMemcpyHtoDAsync_v2
        self._done = libcuda().cuEventQuery

    def upload(self, stream: int, *rows: array[int]) -> tuple[int, int] | None:
        """Queue the upload of equally long rows (``array('q')``), one after another.

        Returns the slot and the device address; None when they do not fit or every slot is in use: go
        another way then. Call :meth:`release` once the work that reads them is queued.
        """
        nbytes = 8 * len(rows[0])
        with self._lock:
            slot = self._turn
            # Held: another thread took it a round ago and has not queued its work, so its event says nothing yet.
            if nbytes * len(rows) > 8 * _SLOT_IDS or self._held[slot] or self._done(self._events[slot]):
                return None
            self._held[slot] = True
            self._turn = (slot + 1) % _SLOTS
        at = self._host.data_ptr() + 8 * _SLOT_IDS * slot
        for number, row in enumerate(rows):
            ctypes.memmove(at + number * nbytes, row.buffer_info()[0], nbytes)
        address = self._ids.data_ptr() + 8 * _SLOT_IDS * slot
        check(self._upload(address, at, nbytes * len(rows), stream), "cuMemcpyHtoDAsync")
        return slot, address

    def release(self, slot: int, stream: int) -> None:
        """The slot is free again after what is queued on ``stream`` now."""
        record(self._events[slot], stream)
        self._held[slot] = False


@cache
def id_ring(device: torch.device) -> IdRing:
    """The ring of one device."""
    with torch.cuda.device(device):
        return IdRing(device)


def make_event() -> int:
    """An event without timing, as a handle; it lives as long as the process."""
    handle = ctypes.c_void_p(0)
    check(libcuda().cuEventCreate(ctypes.byref(handle), _NO_TIMING), "cuEventCreate")
    return int(handle.value or 0)


def record(event: int, stream: int) -> None:
    """``event`` happens when what is queued on ``stream`` is done."""
    check(libcuda().cuEventRecord(event, stream), "cuEventRecord")


def wait(stream: int, event: int) -> None:
    """What is queued on ``stream`` from now on comes after ``event``."""
    check(libcuda().cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent")
