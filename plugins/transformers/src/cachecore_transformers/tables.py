"""Block tables: which blocks hold the tokens of each sequence in one group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cachecore_transformers.blocks import BlockAllocator

__all__ = ["BlockTables", "Fork", "SlotTables", "Span"]


@dataclass(frozen=True, slots=True)
class Span:
    """What one forward call touches: it writes ``[start, stop)`` and its queries see ``[visible, stop)``.

    In entries: tokens, or what a group keeps once for several tokens.
    """

    visible: int
    start: int
    stop: int


class Fork(NamedTuple):
    """New tables for a batch picked from the old one.

    ``shared`` holds the blocks that the new tables take over, one mention a reference. The last blocks
    of the tables numbered ``copied`` are still the sources of copies to be made.
    """

    tables: list[list[int]]
    shared: list[int]
    copied: list[int]

    @property
    def sources(self) -> list[int]:
        """The blocks to copy, one for each of ``copied``."""
        return [self.tables[number][-1] for number in self.copied]


class BlockTables:
    """The tables of all sequences of one cache in one group.

    All sequences are equally long (transformers pads a batch), so they hold equally many blocks. The
    block of token ``t`` is ``tables[sequence][t // block_size - first]``: blocks before ``first`` fell
    out of the window and were released.

    A block that is not full has one reference. That is what makes a write safe: it never reaches a
    block that another table reads.

    A group of compressed entries has one for every ``rate`` tokens, and ``block_size`` counts entries.
    """

    def __init__(self, allocator: BlockAllocator, block_size: int, window: int | None, rate: int = 1) -> None:
        self.allocator = allocator
        self.block_size = block_size
        self.window = window
        self.rate = rate
        self.first = 0
        self.tables: list[list[int]] = []

    @property
    def num_blocks(self) -> int:
        """Blocks held by each sequence."""
        return len(self.tables[0]) if self.tables else 0

    def span(self, length: int, tokens: int) -> Span:
        """The positions of a forward call of ``tokens`` after ``length`` cached ones."""
        visible = 0 if self.window is None else max(0, length - (self.window - 1))
        return Span(visible, length // self.rate, (length + tokens) // self.rate)

    def missing(self, num_sequences: int, stop: int) -> int:
        """Blocks to take before token ``stop - 1`` of every sequence has a place."""
        return num_sequences * max(0, -(-(stop // self.rate) // self.block_size) - self.first - self.num_blocks)

    def reserve(self, num_sequences: int, stop: int, purpose: str) -> list[int]:
        """Give every sequence the blocks for tokens up to ``stop``; returns the new ones."""
        if not self.tables:
            self.tables = [[] for _ in range(num_sequences)]
        new = self.allocator.take(self.missing(num_sequences, stop), purpose)
        each = len(new) // num_sequences
        for number, table in enumerate(self.tables):
            table.extend(new[number * each : (number + 1) * each])
        return new

    def truncate(self, length: int) -> None:
        """Release the blocks wholly after the first ``length`` tokens."""
        keep = max(0, -(-(length // self.rate) // self.block_size) - self.first)
        gone = [block for table in self.tables for block in table[keep:]]
        self.tables = [table[:keep] for table in self.tables]
        self.allocator.release(gone)  # last: a block released that a table still named would be released again

    def drop_before(self, visible: int) -> int:
        """Release the blocks wholly before token ``visible``; returns how many that were."""
        drop = min(visible // self.block_size - self.first, self.num_blocks)
        if drop <= 0:
            return 0
        gone = [block for table in self.tables for block in table[:drop]]
        self.tables, self.first = [table[drop:] for table in self.tables], self.first + drop
        self.allocator.release(gone)
        return len(gone)

    def clear(self) -> None:
        """Release everything."""
        gone = [block for table in self.tables for block in table]
        self.tables, self.first = [], 0
        self.allocator.release(gone)

    def fork(self, indices: Sequence[int], length: int, *, keep: bool = False) -> Fork:
        """Plan tables for the sequences ``indices``, which may repeat or leave some out.

        Full blocks are shared. The block that is not full stays with the first table that takes it;
        every other one gets a copy. With ``keep`` the present tables stay too, so every new table
        needs a copy. Changes nothing.
        """
        partial = self._is_written_on(length)
        owned = set(range(len(self.tables))) if keep else set()
        tables, shared, copied = [], [], []
        for number, sequence in enumerate(indices):
            table = list(self.tables[sequence])
            tables.append(table)
            if partial and table and sequence in owned:
                copied.append(number)
                shared += table[:-1]
            else:
                shared += table
            owned.add(sequence)
        return Fork(tables, shared, copied)

    def _is_written_on(self, length: int) -> bool:
        """Whether the last block of a sequence of ``length`` tokens will be written to again."""
        return length // self.rate % self.block_size != 0

    def adopt(self, fork: Fork, blocks: Sequence[int]) -> None:
        """Replace the tables by planned ones; ``blocks`` hold the copies of ``fork.sources``."""
        self.allocator.share(fork.shared)
        for number, block in zip(fork.copied, blocks, strict=True):
            fork.tables[number][-1] = block
        gone = [block for table in self.tables for block in table]
        self.tables = fork.tables
        self.allocator.release(gone)


class SlotTables(BlockTables):
    """The slots of all sequences of one cache in a state group: one each, always written on.

    ``zero`` is called with the slots that new sequences get.
    """

    def __init__(self, allocator: BlockAllocator, zero: Callable[[list[int]], None]) -> None:
        super().__init__(allocator, 1, None)
        self._zero = zero

    @property
    def slots(self) -> list[int]:
        """Each sequence's slot."""
        return [slot for (slot,) in self.tables]

    def missing(self, num_sequences: int, stop: int) -> int:
        """Slots to take: one for every new sequence."""
        return 0 if self.tables else num_sequences

    def reserve(self, num_sequences: int, stop: int, purpose: str) -> list[int]:
        """Give every new sequence a slot of zeros."""
        new = self.allocator.take(self.missing(num_sequences, stop), purpose)
        if new:
            self.tables = [[slot] for slot in new]
            self._zero(new)
        return new

    def truncate(self, length: int) -> None:
        """A slot does not shrink."""

    def drop_before(self, visible: int) -> int:
        """Nor does it lie behind a window."""
        return 0

    def _is_written_on(self, length: int) -> bool:
        return True
