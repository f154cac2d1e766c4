"""Segments cut into tiles: the table that a kernel reads, worked out once when a copy is built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from cachecore import CopySegment

__all__ = ["Run", "TileTable", "runs_of", "tile_table"]

WIDTHS = (16, 4, 1)
"""Bytes that one access may take, widest first."""


_LONG_RUN = 1 << 19
"""Bytes of a run from which a copy goes through it tile by tile instead of pair by pair. Measured: ``NOTES.md``."""


class Run(NamedTuple):
    """Bytes of every block: addresses of block 0 and the distance of two blocks, on both sides."""

    src: int
    dst: int
    src_stride: int
    dst_stride: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class TileTable:
    """``tiles`` is ``int64[num_tiles, 6]`` on ``device``; ``widths`` adds up the access widths that occur.

    ``tiles_first``: neighbouring tiles mostly stand side by side, so whoever copies takes them in order.
    """

    tiles: Tensor
    num_tiles: int
    widths: int
    tiles_first: bool
    address: int
    device: torch.device


def runs_of(segments: Iterable[CopySegment], src_pools: Sequence[int], dst_pools: Sequence[int]) -> list[Run]:
    """Segments with their pages apart, over the pools' addresses."""
    return [
        Run(
            src_pools[segment.src_pool] + segment.src_start + page * segment.src_page_stride,
            dst_pools[segment.dst_pool] + segment.dst_start + page * segment.dst_page_stride,
            segment.src_block_stride,
            segment.dst_block_stride,
            segment.nbytes,
        )
        for segment in segments
        for page in range(segment.num_pages)
    ]


def tile_table(runs: Iterable[Run], device: torch.device, tile_nbytes: int) -> TileTable:
    """Cut every run at ``tile_nbytes``; bytes that the widest access cannot take become tiles of their own."""
    cut: list[tuple[int, int, int, int, int, int]] = []
    in_long_runs = 0
    for run in runs:
        in_long_runs += run.nbytes if run.nbytes >= _LONG_RUN else -run.nbytes
        done = 0
        for width, nbytes in _widths(run):
            for start in range(done, done + nbytes, tile_nbytes):
                length = min(tile_nbytes, done + nbytes - start)
                cut.append((run.src + start, run.dst + start, run.src_stride, run.dst_stride, length, width))
            done += nbytes
    table = torch.empty((max(1, len(cut)), 6), dtype=torch.int64, device=device)
    base = table.data_ptr()
    rows = [(src - base, dst - base, *rest) for src, dst, *rest in cut]
    if rows:
        table.copy_(torch.tensor(rows, dtype=torch.int64))
    return TileTable(table, len(cut), sum({row[5] for row in cut}), in_long_runs > 0, base, device)


def _widths(run: Run) -> list[tuple[int, int]]:
    """Access widths and the bytes that each takes: the widest that all addresses allow, then the tail."""
    aligned = gcd(run.src, run.dst, run.src_stride, run.dst_stride, WIDTHS[0])
    parts = []
    rest = run.nbytes
    for width in WIDTHS:
        if aligned % width == 0 and rest >= width:
            parts.append((width, rest // width * width))
            rest -= rest // width * width
    return parts
