"""A backend whose memory goes and comes back where it was, played by bytearrays that are wiped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachecore import AllocationError, ByteBackend


class StableBytes(ByteBackend):
    """Released bytes read as 0xDD: whoever sees those used memory that was not there."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.away: dict[int, Any] = {}
        self.stable: dict[int, Any] = {}

    def capabilities(self) -> Mapping[str, str | None]:
        """As the byte backend, with stable addresses."""
        return {**super().capabilities(), "stable_addresses": None}

    def allocate_stable(self, layout: Any, num_entries: int, device: Any) -> Any:
        """In whole pages of 4,096 bytes."""
        found = self.allocate(layout, num_entries, device)
        found.excess_nbytes = -layout.reserved_nbytes(num_entries) % 4096
        self.stable[id(found)] = found
        return found

    def release(self, allocation: Any) -> None:
        """Wipe."""
        if id(allocation) not in self.stable:
            super().release(allocation)
            return
        self.taken_nbytes -= allocation.layout.reserved_nbytes(allocation.num_entries)
        self.away[id(allocation)] = allocation
        self._wipe(allocation, 0xDD)

    def restore(self, allocation: Any) -> Any:
        """Zero the same bytes."""
        if id(allocation) not in self.stable:
            return super().restore(allocation)
        needed = allocation.layout.reserved_nbytes(allocation.num_entries)
        if needed > self.capacity_nbytes - self.taken_nbytes:
            raise AllocationError(f"{needed} bytes are not free")
        self.taken_nbytes += needed
        del self.away[id(allocation)]
        self._wipe(allocation, 0)
        return allocation

    def free(self, allocation: Any) -> None:
        """What is away was counted already."""
        if self.away.pop(id(allocation), None) is not None:
            self.taken_nbytes += allocation.layout.reserved_nbytes(allocation.num_entries)
        self.stable.pop(id(allocation), None)
        super().free(allocation)

    def _wipe(self, allocation: Any, value: int) -> None:
        for buffer in allocation.buffers:
            buffer[:] = bytes([value]) * len(buffer)
