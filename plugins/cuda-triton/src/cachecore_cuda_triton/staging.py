"""A bounded ring of staging memory on the device, one for each direction, shared by all groups of a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["SLOT_NBYTES", "StagingRing", "staging_ring"]

SLOT_NBYTES = 64 << 20
"""Bytes of one slot: with 32 MiB a copy engine is busy for 0.6 ms, far longer than queuing the next chunk takes."""

NUM_SLOTS = 4


class StagingRing:
    """Slots that a kernel fills and a copy engine empties, or the other way round.

    ``kernels`` and ``engines`` are the streams of the two; they meet in events, never on the host.
    """

    def __init__(self, device: torch.device, *, slot_nbytes: int) -> None:
        self.device = device
        self.kernels: torch.cuda.Stream = torch.cuda.Stream(device, priority=-5)
        self.engines: torch.cuda.Stream = torch.cuda.Stream(device, priority=-5)
        self.slots: list[Tensor] = []
        self.free: list[torch.cuda.Event] = []
        self.full: list[torch.cuda.Event] = []
        self.turn = 0
        self.grow(slot_nbytes)

    def grow(self, slot_nbytes: int) -> None:
        """Make room for one block at least; waits for the copies under way."""
        if self.slots and self.slots[0].numel() >= slot_nbytes:
            return
        self.kernels.synchronize()
        self.engines.synchronize()
        with torch.inference_mode(False):
            self.slots = [torch.empty(slot_nbytes, dtype=torch.uint8, device=self.device) for _ in range(NUM_SLOTS)]
        self.free = [torch.cuda.Event() for _ in range(NUM_SLOTS)]
        self.full = [torch.cuda.Event() for _ in range(NUM_SLOTS)]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(slot.numel() for slot in self.slots)

    def next(self) -> int:
        """The slot to use now."""
        turn, self.turn = self.turn, (self.turn + 1) % NUM_SLOTS
        return turn


_rings: dict[tuple[torch.device, str], Any] = {}


def staging_ring(device: torch.device, direction: str, block_nbytes: int) -> StagingRing:
    """The ring of one device and direction, with slots that hold a block at least."""
    ring: StagingRing | None = _rings.get((device, direction))
    if ring is None:
        ring = _rings[device, direction] = StagingRing(device, slot_nbytes=max(SLOT_NBYTES, block_nbytes))
    ring.grow(block_nbytes)
    return ring
