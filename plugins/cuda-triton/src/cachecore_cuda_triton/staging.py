"""A bounded ring of staging memory on the device, one for each direction, shared by all groups of a device."""

from __future__ import annotations

from threading import RLock
from typing import Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from cachecore import AllocationError
from cachecore_cuda_triton.submission import make_event

__all__ = ["MOST_ROWS", "NUM_SLOTS", "SLOT_NBYTES", "StagingRing", "StagingUser", "rings_of", "staging_ring"]

SLOT_NBYTES = 64 << 20
"""Bytes of one slot: what a swap of any size keeps the link busy with. Measured: see ``NOTES.md``."""

NUM_SLOTS = 4
"""One more than the chunks of a usual swap, so that the next swap starts before the last one's slot is free."""


MOST_ROWS = 4096
"""Blocks of a chunk at most: their numbers stand on the device once and for all."""


class StagingUser(Protocol):
    """What stages blocks of ``row_nbytes`` for the device's ``allocation`` (its id), which may sleep."""

    row_nbytes: int
    allocation: int
    is_awake: bool


class StagingRing:
    """Slots that a kernel fills and a copy engine empties, or the other way round.

    ``kernels`` and ``engines`` are the streams of the two; they meet in events (driver handles), never on
    the host. ``generation`` counts up when the slots have moved: what holds their addresses is void then.
    Whoever queues work or grows the ring holds ``lock``. The slots are there as long as somebody who
    joined is awake; swaps never take them themselves, as that would wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = RLock()
        self.kernels: torch.cuda.Stream = torch.cuda.Stream(device, priority=-5)
        self.engines: torch.cuda.Stream = torch.cuda.Stream(device, priority=-5)
        self.kernels_handle, self.engines_handle = self.kernels.cuda_stream, self.engines.cuda_stream
        with torch.inference_mode(False):
            self._numbers = torch.arange(MOST_ROWS, dtype=torch.int64, device=device)
        torch.cuda.current_stream(device).synchronize()
        self.numbers_at = self._numbers.data_ptr()
        with torch.cuda.device(device):
            self.came, *events = [make_event() for _ in range(1 + 2 * NUM_SLOTS)]
        self.free, self.full = events[:NUM_SLOTS], events[NUM_SLOTS:]
        self.slots: list[Tensor] = []
        self.generation = 0
        self.turn = 0
        self._users: WeakSet[StagingUser] = WeakSet()

    def join(self, user: StagingUser) -> None:
        """``user`` swaps from now on; errors as :meth:`grow`."""
        with self.lock:
            self.grow(user.row_nbytes)
            self._users.add(user)

    def rest(self, allocation: int, *, forget: bool) -> None:
        """Users of an allocation sleep, or never swap again; without another that is awake the slots go back."""
        with self.lock:
            for user in [user for user in self._users if user.allocation == allocation]:
                user.is_awake = False
                if forget:
                    self._users.discard(user)
            if not any(user.is_awake for user in self._users):
                self.drop()

    def wake(self, allocation: int) -> None:
        """Users of an allocation swap again; errors as :meth:`grow`, and then they still sleep."""
        with self.lock:
            mine = [user for user in self._users if user.allocation == allocation]
            if mine:
                self.grow(max(user.row_nbytes for user in mine))
            for user in mine:
                user.is_awake = True

    def grow(self, block_nbytes: int) -> None:
        """Take the slots, or larger ones when a block does not fit; waits for the copies under way.

        Raises
        ------
        AllocationError
            When the device has no room for them.
        """
        nbytes = max(SLOT_NBYTES, block_nbytes)
        with self.lock:
            if self.slots and self.slots[0].numel() >= nbytes:
                return
            self.drop()  # before the larger ones are taken
            try:
                with torch.inference_mode(False):
                    slots = [torch.empty(nbytes, dtype=torch.uint8, device=self.device) for _ in range(NUM_SLOTS)]
            except torch.OutOfMemoryError as error:
                free, _ = torch.cuda.mem_get_info(self.device)
                raise AllocationError(
                    f"no room on {self.device} for {NUM_SLOTS} staging slots of {nbytes} bytes, which swaps of short "
                    f"rows take: {NUM_SLOTS * nbytes} bytes are needed and {free} free",
                    nbytes=nbytes,
                    needed_nbytes=NUM_SLOTS * nbytes,
                    free_nbytes=free,
                    device=str(self.device),
                ) from error
            torch.cuda.current_stream(self.device).synchronize()  # what had this memory before is done with it
            self.slots = slots
            self.generation += 1

    def drop(self) -> None:
        """Give the slots back once no copy uses them."""
        with self.lock:
            if self.slots:
                self.kernels.synchronize()
                self.engines.synchronize()
                self.slots = []
                self.generation += 1

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(slot.numel() for slot in self.slots)

    def next(self) -> int:
        """The slot to use now."""
        turn, self.turn = self.turn, (self.turn + 1) % NUM_SLOTS
        return turn


_rings: dict[tuple[torch.device, str], StagingRing] = {}
_making = RLock()


def staging_ring(device: torch.device, direction: str) -> StagingRing:
    """The ring of one device and direction; it takes its slots when a swap that needs them is made."""
    with _making:
        ring = _rings.get((device, direction))
        if ring is None:
            ring = _rings[device, direction] = StagingRing(device)
    return ring


def rings_of(device: torch.device) -> list[StagingRing]:
    """The rings that a device has by now."""
    with _making:
        return [ring for (owner, _), ring in _rings.items() if owner == device]
