"""A bounded ring of staging memory on the device, one for each direction, shared by all groups of a device."""

from __future__ import annotations

from threading import RLock

import torch
from torch import Tensor

from cachecore_cuda_triton.submission import make_event

__all__ = ["NUM_SLOTS", "SLOT_NBYTES", "StagingRing", "staging_ring"]

SLOT_NBYTES = 64 << 20
"""Bytes of one slot: what a swap of any size keeps the link busy with. Measured: see ``NOTES.md``."""

NUM_SLOTS = 4
"""One more than the chunks of a usual swap, so that the next swap starts before the last one's slot is free."""


class StagingRing:
    """Slots that a kernel fills and a copy engine empties, or the other way round.

    ``kernels`` and ``engines`` are the streams of the two; they meet in events (driver handles), never on
    the host. ``generation`` counts up when the slots have moved: what holds their addresses is void then.
    Whoever queues work or grows the ring holds ``lock``.
    """

    def __init__(self, device: torch.device, *, slot_nbytes: int) -> None:
        self.device = device
        self.lock = RLock()
        self.kernels: torch.cuda.Stream = torch.cuda.Stream(device, priority=-5)
        self.engines: torch.cuda.Stream = torch.cuda.Stream(device, priority=-5)
        with torch.cuda.device(device):
            self.came, *events = [make_event() for _ in range(1 + 2 * NUM_SLOTS)]
        self.free, self.full = events[:NUM_SLOTS], events[NUM_SLOTS:]
        self.slots: list[Tensor] = []
        self.generation = 0
        self.turn = 0
        self.grow(slot_nbytes)

    def grow(self, slot_nbytes: int) -> None:
        """Make room for one block at least; waits for the copies under way."""
        with self.lock:
            if self.slots and self.slots[0].numel() >= slot_nbytes:
                return
            self.kernels.synchronize()
            self.engines.synchronize()
            self.slots.clear()  # before the larger ones are taken
            with torch.inference_mode(False):
                self.slots = [torch.empty(slot_nbytes, dtype=torch.uint8, device=self.device) for _ in range(NUM_SLOTS)]
            torch.cuda.current_stream(self.device).synchronize()  # what had this memory before is done with it
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


def staging_ring(device: torch.device, direction: str, block_nbytes: int) -> StagingRing:
    """The ring of one device and direction, with slots that hold a block at least."""
    with _making:
        ring = _rings.get((device, direction))
        if ring is None:
            ring = _rings[device, direction] = StagingRing(device, slot_nbytes=max(SLOT_NBYTES, block_nbytes))
    ring.grow(block_nbytes)
    return ring
