"""One strided ``copy_`` a block: a loop in C over all runs, in as many threads as torch uses."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import torch
from torch import Tensor

__all__ = ["WORDS", "Run", "StridedGroup"]

Run = tuple[int, int, int]
"""``(source block, destination block, number of neighbouring blocks)``."""

WORDS = MappingProxyType({4: torch.int32, 2: torch.int16, 1: torch.uint8})
"""A copy is as fast with any word, but torch gives each thread 32,768 words: 128 KiB, some 8 microseconds of work."""

_VIEWS_KEPT = 16384
"""Views kept for each side, about 0.5 kB each: making one costs as much as copying some 20 kB."""


class StridedGroup:
    """One group of runs as two tensors ``(blocks, *dims, words)`` of equal shape but for the blocks."""

    def __init__(self, src: Tensor, dst: Tensor) -> None:
        self._src, self._dst = _Views(src), _Views(dst)

    def copy(self, runs: Sequence[Run]) -> None:
        """Copy block after block; Python is left once, and the GIL with it, for the whole list.

        torch shares a block among its threads (see :data:`WORDS`). Threads of our own would run beside
        torch's, which spin for some milliseconds after every call: measured at half the speed.
        """
        dst = [self._dst.of(block, count) for _, block, count in runs]
        src = [self._src.of(block, count) for block, _, count in runs]
        with torch.inference_mode():
            torch._foreach_copy_(dst, src)


class _Views:
    """Views of blocks of one tensor, kept for the next copy of the same block."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._kept: dict[tuple[int, int], Tensor] = {}

    def of(self, block: int, count: int) -> Tensor:
        """``count`` neighbouring blocks."""
        found = self._kept.get((block, count))
        if found is None:
            if len(self._kept) >= _VIEWS_KEPT:
                self._kept.clear()
            found = self._tensor[block] if count == 1 else self._tensor[block : block + count]
            self._kept[block, count] = found
        return found
