"""Ids on their way to the device: a slot is nobody else's until the work that reads it is queued."""

from __future__ import annotations

import ctypes
from array import array

import pytest
import torch
from cachecore_cuda_triton import submission
from cachecore_cuda_triton.submission import IdRing


class DriverAtOnce:
    """Uploads are done when the call returns, and every event has happened."""

    def cuMemcpyHtoDAsync_v2(self, to: int, at: int, nbytes: int, stream: int) -> int:  # noqa: N802  # the driver's name
        ctypes.memmove(to, at, nbytes)
        return 0

    def cuEventCreate(self, handle: object, flags: int) -> int:  # noqa: N802  # as above
        return 0

    def cuEventRecord(self, event: int, stream: int) -> int:  # noqa: N802  # as above
        return 0

    def cuEventQuery(self, event: int) -> int:  # noqa: N802  # as above
        return 0


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> IdRing:
    driver = DriverAtOnce()
    monkeypatch.setattr(submission, "libcuda", lambda: driver)
    return IdRing(torch.device("cpu"))


def test_a_slot_is_not_taken_again_before_it_is_released(ring: IdRing) -> None:
    slow = ring.upload(0, array("q", [7, 8]))  # a thread that was interrupted, or has many chunks to queue
    assert slow is not None
    for number in range(submission._SLOTS - 1):  # another thread goes once around
        other = ring.upload(0, array("q", [number, number]))
        assert other is not None
        ring.release(other[0], 0)

    refused = ring.upload(0, array("q", [1, 2]))

    assert refused is None
    assert list((ctypes.c_int64 * 2).from_address(slow[1])) == [7, 8]
    ring.release(slow[0], 0)
    assert ring.upload(0, array("q", [1, 2])) == slow
