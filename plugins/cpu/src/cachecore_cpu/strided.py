"""Short runs: strided tensors, a block at a time, copied by torch in a loop in C over all runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from cachecore_cpu.threads import Run, Task

__all__ = ["WORDS", "StridedGroup"]

WORDS = MappingProxyType({16: torch.complex128, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8})
"""The widest word halves the pieces of a block; ``copy_`` moves complex numbers bit for bit."""

_GRAIN = 32768
"""Elements from which torch shares a copy among threads of its own. Source: ``at::internal::GRAIN_SIZE``."""

_VIEWS_KEPT = 16384
"""Views kept for each side, about 0.5 kB each: making one costs as much as copying some 20 kB."""


class StridedGroup:
    """One group of runs as two tensors ``(blocks, *dims, words)`` of equal shape but for the blocks."""

    def __init__(self, src: Tensor, dst: Tensor) -> None:
        self._src, self._dst = _Pieces(src), _Pieces(dst)

    def tasks(self, runs: Sequence[Run], num_tasks: int) -> list[Task]:
        """Equal shares of all blocks, in pieces that torch copies in the calling thread when there are several."""
        most = _GRAIN - 1 if num_tasks > 1 else None
        src: list[Tensor] = []
        dst: list[Tensor] = []
        for src_block, dst_block, count in runs:
            src += self._src.of(src_block, count, most)
            dst += self._dst.of(dst_block, count, most)
        cuts = [len(src) * share // num_tasks for share in range(num_tasks + 1)]
        return [partial(_copy, dst[start:stop], src[start:stop]) for start, stop in pairwise(cuts)]


class _Pieces:
    """Views of blocks of one tensor, kept for the next copy of the same block."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._kept: dict[tuple[int, int], list[Tensor]] = {}
        self._num_kept = 0
        self._most: int | None = None

    def of(self, block: int, count: int, most: int | None) -> list[Tensor]:
        """``count`` neighbouring blocks in pieces of at most ``most`` elements."""
        if most != self._most or self._num_kept > _VIEWS_KEPT:
            self._kept.clear()
            self._num_kept, self._most = 0, most
        found = self._kept.get((block, count))
        if found is None:
            whole = self._tensor[block] if count == 1 else self._tensor[block : block + count]
            found = self._kept[block, count] = [whole] if most is None else _cut(whole, most)
            self._num_kept += len(found)
        return found


def _cut(view: Tensor, most: int) -> list[Tensor]:
    """Cut along the outermost axes first, so that runs stay whole where they can."""
    if view.numel() <= most:
        return [view]
    if view.shape[0] == 1:
        return _cut(view[0], most)
    row = view.numel() // view.shape[0]
    if row > most:
        return [piece for part in view.unbind(0) for piece in _cut(part, most)]
    return list(torch.split(view, most // row))


def _copy(dst: list[Tensor], src: list[Tensor]) -> None:
    """Copy piece by piece in C; the GIL is released once for the whole list, so threads do not wait for it."""
    if dst:
        with torch.inference_mode():
            torch._foreach_copy_(dst, src)
