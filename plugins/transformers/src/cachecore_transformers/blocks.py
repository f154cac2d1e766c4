"""Free blocks (or slots) of one group on one tier, with a reference count for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cachecore.errors import AllocationError, BlockIndexError

__all__ = ["BlockAllocator"]


class BlockAllocator:
    """Hands out block ids; a block is free again when its last reference is released.

    The block freed longest ago is handed out first, so a stale table entry points at free memory for
    as long as there is any, and blocks that come back from the host tier land in others.
    """

    def __init__(self, num_blocks: int, *, group: str, tier: str, what: str = "blocks") -> None:
        self.num_blocks = num_blocks
        self.what = what
        self.group = group
        self.tier = tier
        self.peak = 0
        self._free = deque(range(num_blocks))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody refers to."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free)

    def references(self, block: int) -> int:
        """How many tables hold ``block``."""
        return self._references[block]

    def check(self, needed: int, purpose: str) -> None:
        """Raise :class:`~cachecore.errors.AllocationError` unless ``needed`` blocks are free; takes nothing."""
        if needed <= self.num_free:
            return
        raise AllocationError(
            f"group {self.group!r}: {purpose} needs {needed} more {self.tier} {self.what}, but {self.num_free} of "
            f"{self.num_blocks} are free; release or swap out another cache, or open the pool with at least "
            f"{self.num_used + needed} {self.tier} {self.what} in this group",
            group=self.group,
            tier=self.tier,
            needed=needed,
            free=self.num_free,
        )

    def take(self, count: int, purpose: str) -> list[int]:
        """``count`` blocks with one reference each, or none at all and an error."""
        self.check(count, purpose)
        taken = [self._free.popleft() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        self.peak = max(self.peak, self.num_used)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of ``blocks``; a block named twice gets two."""
        for block in blocks:
            self._held(block)
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each of ``blocks``; a block named twice loses two."""
        for block in blocks:
            self._held(block)
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def _held(self, block: int) -> None:
        if not self._references[block]:
            raise BlockIndexError(
                f"group {self.group!r}: {self.tier} {self.what.removesuffix('s')} {block} is free; "
                "only a held one is shared or released",
                group=self.group,
                block=block,
            )
