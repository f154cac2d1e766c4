"""Who keeps the staging slots, and when they go back: on rings whose device is the host."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from weakref import WeakSet

import pytest
import torch
from cachecore_cuda_triton import CudaTritonBackend, backend, staging
from cachecore_cuda_triton.stable_memory import StableAllocation
from cachecore_cuda_triton.staging import NUM_SLOTS, StagingRing
from cachecore_torch_default import TorchBackend

from cachecore import AllocationError, DeviceSpec

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


class RememberingRing:
    """Remembers what a backend asks of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def rest(self, allocation: int, *, forget: bool) -> None:
        self.asked.append(("rest", allocation, forget))

    def wake(self, allocation: int) -> None:
        self.asked.append(("wake", allocation))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What the only ring of the device is asked, and the backend's own work, in order."""
    ring = RememberingRing()
    monkeypatch.setattr(backend, "rings_of", lambda device: [ring] if device == torch.device("cuda", 0) else [])
    for name in ("free", "release"):
        monkeypatch.setattr(TorchBackend, name, lambda self, allocation, name=name: ring.asked.append((name,)))
    for name in ("free_stable", "release_stable"):
        monkeypatch.setattr(backend, name, lambda allocation, name=name: ring.asked.append((name,)))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return ring.asked


POOLS = (SimpleNamespace(device=torch.device("cuda", 0)),)


def stable(pools: tuple[object, ...]) -> StableAllocation:
    made = object.__new__(StableAllocation)
    made.pools, made.kept, made.device = pools, (POOLS, POOLS), DeviceSpec.parse("cuda:0")
    return made


def test_memory_that_goes_takes_its_staging_along(asked: list[tuple[object, ...]]) -> None:
    usual, other = SimpleNamespace(pools=POOLS), SimpleNamespace(pools=(SimpleNamespace(device=torch.device("cpu")),))
    made = CudaTritonBackend()

    made.release(usual)  # its copies are built anew when it wakes
    made.free(usual)
    made.free(other)

    assert asked == [("rest", id(usual), True), ("release",), ("rest", id(usual), True), ("free",), ("free",)]


def test_stable_memory_takes_its_staging_again(
    asked: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    awake, asleep, made = stable(POOLS), stable(()), CudaTritonBackend()
    monkeypatch.setattr(backend, "restore_stable", lambda allocation, device: asked.append(("restore",)) or allocation)

    made.release(awake)
    assert made.restore(asleep) is asleep
    made.free(asleep)

    assert asked == [
        *(("rest", id(awake), False), ("release_stable",)),
        *(("wake", id(asleep)), ("restore",)),
        *(("rest", id(asleep), True), ("free_stable",)),
    ]


def test_stable_memory_that_finds_no_room_sleeps_on(
    asked: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise AllocationError("no room")

    asleep = stable(())
    monkeypatch.setattr(backend, "restore_stable", full)

    with pytest.raises(AllocationError, match="no room"):
        CudaTritonBackend().restore(asleep)

    assert asked == [("wake", id(asleep)), ("rest", id(asleep), False)]
