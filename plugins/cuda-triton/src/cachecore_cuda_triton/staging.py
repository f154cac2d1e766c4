"""A bounded ring of staging memory on the device, one for each direction, shared by all groups of a device."""

from __future__ import annotations

from threading import RLock

import torch
from torch import Tensor

from cachecore import AllocationError
from cachecore_cuda_triton.submission import make_event

__all__ = ["MOST_ROWS", "NUM_SLOTS", "SLOT_NBYTES", "StagingRing", "drop_staging", "staging_ring"]

SLOT_NBYTES = 64 << 20
"""Bytes of one slot: what a swap of any size keeps the link busy with. Measured: see ``NOTES.md``."""

NUM_SLOTS = 4
"""One more than the chunks of a usual swap, so that the next swap starts before the last one's slot is free."""


MOST_ROWS = 4096
"""Blocks of a chunk at most: their numbers stand on the device once and for all."""


class StagingRing:
    """Slots that a kernel fills and a copy engine empties, or the other way round.

    ``kernels`` and ``engines`` are the streams of the two; they meet in events (driver handles), never on
    the host. ``generation`` counts up when the slots have moved: what holds their addresses is void then.
    Whoever queues work or grows the ring holds ``lock``.
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
                raise AllocationError(
                    f"no room on {self.device} for {NUM_SLOTS} staging slots of {nbytes} bytes, which swaps of short "
                    f"rows take; leave that much free ({str(error).partition('.')[0]})",
                    needed_nbytes=NUM_SLOTS * nbytes,
                    device=str(self.device),
                ) from error
            torch.cuda.current_stream(self.device).synchronize()  # what had this memory before is done with it
            self.slots = slots
            self.generation += 1

    def drop(self) -> None:
        """Give the slots back once no copy uses them; whoever needs them next takes them again."""
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


def drop_staging(device: torch.device) -> None:
    """Give back the slots of both directions."""
    with _making:
        rings = [ring for (owner, _), ring in _rings.items() if owner == device]
    for ring in rings:
        ring.drop()
