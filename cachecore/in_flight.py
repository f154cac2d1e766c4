"""Transfers under way, and the host blocks that each of them still reads or writes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from threading import Lock

from cachecore.backend import Completion

__all__ = ["InFlight"]


class InFlight:
    """Of one group with ``num_blocks`` host blocks. Threads may come at once, each with blocks of its own.

    No completion is asked under the lock: that is a plugin's code.
    """

    def __init__(self, num_blocks: int) -> None:
        self._by_block: dict[int, Completion] = {}
        self._queue: deque[Completion] = deque()
        self._most = 2 * num_blocks
        self._lock = Lock()

    def earlier(self, blocks: Iterable[int]) -> list[Completion]:
        """Transfers that touch one of these blocks; mostly none is under way, which is told without looking them up."""
        queue = self._queue
        with suppress(Exception):  # one that failed is told to whoever asks for its blocks, or waits for all
            while queue and (front := queue[0]).done():
                with self._lock:
                    if queue and queue[0] is front:
                        queue.popleft()
        if not queue:
            return []
        found = {id(work): work for work in map(self._by_block.get, blocks) if work is not None}
        return [work for work in found.values() if not work.done()]

    def add(self, blocks: Iterable[int], work: Completion) -> None:
        """``work`` touches these blocks until it is done."""
        with self._lock:
            self._by_block.update(dict.fromkeys(blocks, work))
            self._queue.append(work)
            if len(self._queue) > self._most:  # behind one that takes long; who was replaced on all blocks is not asked
                self._queue = deque(self._works().values())

    def blocks(self) -> frozenset[int]:
        """The blocks that are touched now."""
        works = self._works()  # held until the end: an id is used again once its object is gone
        finished = {at for at, work in works.items() if work.done()}
        with self._lock:
            self._by_block = {block: work for block, work in self._by_block.items() if id(work) not in finished}
            return frozenset(self._by_block)

    def works(self) -> list[Completion]:
        """Every transfer that a block was touched by last."""
        return list(self._works().values())

    def clear(self) -> None:
        """All are done."""
        with self._lock:
            self._by_block.clear()
            self._queue.clear()

    def _works(self) -> dict[int, Completion]:
        return {id(work): work for work in list(self._by_block.values())}
