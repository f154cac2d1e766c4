"""Who keeps the staging slots, and when they go back: on rings whose device is the host."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch
from cachecore_cuda_triton import staging
from cachecore_cuda_triton.staging import NUM_SLOTS, StagingRing

from cachecore import AllocationError

SLOT = 1 << 10


class User:
    """Blocks of 100 bytes, or as many as told."""

    def __init__(self, allocation: int, row_nbytes: int = 100) -> None:
        self.allocation, self.row_nbytes, self.is_awake = allocation, row_nbytes, True


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> StagingRing:
    """A ring without streams and events."""
    monkeypatch.setattr(staging, "SLOT_NBYTES", SLOT)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    made = object.__new__(StagingRing)
    made.device, made.lock, made.slots, made.generation, made.turn = torch.device("cpu"), RLock(), [], 0, 0
    made.kernels = made.engines = SimpleNamespace(synchronize=lambda: None)
    made._users = WeakSet()
    return made


def test_the_slots_stay_while_somebody_is_awake(ring: StagingRing) -> None:
    one, other = User(1), User(2)
    ring.join(one)
    ring.join(other)
    assert (ring.nbytes, ring.generation) == (NUM_SLOTS * SLOT, 1)

    ring.rest(1, forget=True)
    assert ring.nbytes

    ring.rest(2, forget=False)
    assert ring.nbytes == 0

    ring.wake(1)  # closed for good
    assert ring.nbytes == 0
    ring.wake(2)
    assert ring.nbytes == NUM_SLOTS * SLOT
    ring.rest(2, forget=True)
    assert ring.nbytes == 0


def test_who_wakes_brings_slots_that_are_large_enough(ring: StagingRing) -> None:
    users = User(1, 5000), User(1, 9000)
    for user in users:
        ring.join(user)
    ring.rest(1, forget=False)

    ring.wake(1)

    assert ring.nbytes == NUM_SLOTS * 9000
    assert all(user.is_awake for user in users)


def test_whoever_is_gone_keeps_nothing(ring: StagingRing) -> None:
    ring.join(User(1))  # collected at once, as by an engine that was never closed
    kept = User(2)
    ring.join(kept)

    ring.rest(2, forget=True)

    assert ring.nbytes == 0


def test_without_room_the_users_still_sleep(ring: StagingRing, monkeypatch: pytest.MonkeyPatch) -> None:
    user = User(1)
    ring.join(user)
    ring.rest(1, forget=False)

    def full(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(torch, "empty", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 99))
    with pytest.raises(AllocationError, match=r"4 staging slots of 1024 bytes.*4096 bytes are needed and 7 free"):
        ring.wake(1)

    assert not user.is_awake
    assert ring.nbytes == 0
