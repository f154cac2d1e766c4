"""Ways of moving blocks. Another one is a function here, and an entry in :data:`WAYS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cachecore import BlockPairs, CacheEngine, CopySegment
from cachecore_torch_default.block_copy import copy_words_of
from cachecore_torch_default.pinned import pinned_refusal
from cachecore_torch_default.segments import fold_segments, group_tensors

__all__ = ["WAYS", "Move", "Subject", "contiguous_copy", "strided_limit"]

Move = Callable[[BlockPairs], Any]
"""Moves whole blocks; returns when queued."""


class Subject(NamedTuple):
    """One direction of one engine. ``tensors`` are (source, destination), ``(blocks, *dims, words)``."""

    engine: CacheEngine[Tensor]
    direction: str
    segments: tuple[CopySegment, ...]
    tensors: tuple[tuple[Tensor, Tensor], ...]

    @property
    def pages_per_block(self) -> int:
        """Kernel pages of one block."""
        return self.engine.plans.only().pages_per_unit

    @classmethod
    def of(cls, engine: CacheEngine[Tensor], direction: str, segments: tuple[CopySegment, ...]) -> Subject:
        """Fold the segments of one direction into tensors."""
        device, host = engine.allocation(), engine.allocation(host=True)
        src, dst = {"copy": (device, device), "swap_out": (device, host), "swap_in": (host, device)}[direction]
        counts = tuple(
            side.num_entries * side.layout.pages_per_entry // engine.plans.only().pages_per_unit for side in (src, dst)
        )
        words = copy_words_of(engine.backend, engine.backend)
        groups = fold_segments(segments)
        return cls(
            engine,
            direction,
            segments,
            tuple(
                group_tensors(
                    group, src.pools[group.src_pool], dst.pools[group.dst_pool], (counts[0], counts[1]), words
                )
                for group in groups
            ),
        )


def engine_copy(subject: Subject) -> Move:
    """What the engine resolved."""
    call: Move = {
        "copy": subject.engine.copy_blocks,
        "swap_out": subject.engine.swap_out,
        "swap_in": subject.engine.swap_in,
    }[subject.direction]
    return call


def index_words(subject: Subject) -> Move:
    """``index_select`` and ``index_copy_`` on integer words, all blocks at once: torch's own gather and scatter."""

    def move(pairs: BlockPairs) -> None:
        src_ids, dst_ids = (torch.frombuffer(ids, dtype=torch.int64) for ids in (pairs.src, pairs.dst))
        for src, dst in subject.tensors:
            gathered = src.index_select(0, src_ids.to(src.device)).to(dst.device)
            dst.index_copy_(0, dst_ids.to(dst.device), gathered)

    return move


def strided_blocks(subject: Subject) -> Move:
    """One strided ``copy_`` a block and group of runs."""

    def move(pairs: BlockPairs) -> None:
        for src, dst in subject.tensors:
            for src_block, dst_block in pairs:
                dst[dst_block].copy_(src[src_block])

    return move


WAYS: Mapping[str, Callable[[Subject], Move]] = {
    "engine": engine_copy,
    "torch index_select+index_copy_": index_words,
    "torch copy_ a block": strided_blocks,
}
"""By name; the first is the subject, and its name is the path that the engine reports."""


def strided_limit(subject: Subject, num_pairs: int) -> Callable[[], None]:
    """One strided ``copy_`` a pool of as many runs of the same length as ``num_pairs`` blocks have."""
    pages = subject.pages_per_block
    pairs = []
    for pool in subject.engine.allocation().pools:
        outer, entries, inner = pool.shape
        word = torch.int64 if inner % 8 == 0 else torch.uint8
        blocks = pool.view(outer, entries // pages, inner * pages)[:, : 2 * num_pairs].view(word)
        pairs.append((blocks[:, 0::2], blocks[:, 1::2]))

    def copy() -> None:
        for dst, src in pairs:
            dst.copy_(src)

    return copy


def contiguous_copy(subject: Subject, nbytes: int) -> Callable[[], None]:
    """One plain copy of ``nbytes`` in the direction measured; a swap's with page-locked memory, if there is any."""
    device = subject.engine.allocation().pools[0].device
    there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    on_host = device.type != "cpu" and subject.direction != "copy"
    pinned = on_host and pinned_refusal(device.type) is None
    other = torch.zeros(nbytes, dtype=torch.uint8, device="cpu" if on_host else device, pin_memory=pinned)
    dst, src = (other, there) if subject.direction == "swap_out" else (there, other)

    def copy() -> None:
        dst.copy_(src, non_blocking=True)

    return copy
