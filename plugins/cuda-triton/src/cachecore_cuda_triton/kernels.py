"""Triton kernels that move and zero runs of bytes: one launch for every pool, row and entry axis.

What to move stands in a table on the device, so a kernel is compiled once, whatever the layout. A tile
of the table is ``int64[6]``: source and destination, the distance of two blocks on each side, its
length, and the bytes that one access may take (16, 4 or 1). Places are byte offsets from the table
itself: the one pointer argument keeps its known alignment, and any memory of the process is within 64
bits of it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

__all__ = ["NUM_WARPS", "OCCUPY_THREADS", "TILE_NBYTES", "copy_few", "copy_tiles", "occupy", "zero_tiles"]

TILE_NBYTES = 4096
"""Bytes that one program moves at once. Measured: see ``NOTES.md``."""

NUM_WARPS = 4

OCCUPY_THREADS = 512

_IDS = ["src_ids", "dst_ids"]


@triton.jit
def _copy_tile(table, tile, src, dst, WIDTHS: tl.constexpr, TILE: tl.constexpr):
    """One tile of one pair. ``WIDTHS`` adds up the access widths that occur: 16, 4 and 1.

    A negative id empties the mask; a branch would put the table's loads after the ids', 10 % slower.
    """
    at = tl.load(tile) + src * tl.load(tile + 2)
    to = tl.load(tile + 1) + dst * tl.load(tile + 3)
    nbytes = tl.where((src >= 0) & (dst >= 0), tl.load(tile + 4), 0)
    if WIDTHS == 16:
        _copy_words(table, at, to, nbytes, TILE)
    else:
        width = tl.load(tile + 5)
        if WIDTHS >= 16:
            if width == 16:
                _copy_words(table, at, to, nbytes, TILE)
        if WIDTHS % 16 >= 4:
            if width == 4:
                table4 = table.to(tl.pointer_type(tl.int32))
                lane4 = tl.arange(0, TILE // 4)
                mask4 = lane4 < nbytes // 4
                tl.store(table4 + to // 4 + lane4, tl.load(table4 + at // 4 + lane4, mask=mask4), mask=mask4)
        if WIDTHS % 4 == 1:
            if width == 1:
                table1 = table.to(tl.pointer_type(tl.uint8))
                lane1 = tl.arange(0, TILE)
                mask1 = lane1 < nbytes
                tl.store(table1 + to + lane1, tl.load(table1 + at + lane1, mask=mask1), mask=mask1)


@triton.jit
def _copy_words(table, at, to, nbytes, TILE: tl.constexpr):
    """Pairs of 8-byte words, masked by the pair, become 16-byte accesses."""
    word = tl.arange(0, TILE // 16)[:, None]
    lane = word * 2 + tl.arange(0, 2)[None, :]
    mask = (word < nbytes // 16).broadcast_to(TILE // 16, 2)
    source = table + tl.multiple_of(at // 16 * 2, 2)
    target = table + tl.multiple_of(to // 16 * 2, 2)
    # No cache hints: lines that go first never drive out what an earlier kernel left, and then have no cache at all.
    tl.store(target + lane, tl.load(source + lane, mask=mask), mask=mask)


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=_IDS)
def copy_tiles(table, src_ids, dst_ids, first, WIDTHS: tl.constexpr, TILE: tl.constexpr, TILES_FIRST: tl.constexpr):
    """A program a pair and tile; a negative id is skipped.

    Neighbouring programs (axis x, which has no limit) take neighbouring tiles of one pair where
    ``TILES_FIRST``, else one tile of all pairs; axis y, counted from ``first``, is the other.
    """
    inner = tl.program_id(0).to(tl.int64)
    outer = (first + tl.program_id(1)).to(tl.int64)
    if TILES_FIRST:
        tile = table + inner * 6
        pair = outer
    else:
        tile = table + outer * 6
        pair = inner
    src = tl.load(src_ids + pair)
    dst = tl.load(dst_ids + pair)
    _copy_tile(table, tile, src, dst, WIDTHS, TILE)


@triton.jit(do_not_specialize=["num_tiles", "total"], do_not_specialize_on_alignment=_IDS)
def copy_few(table, src_ids, dst_ids, num_tiles, total, WIDTHS: tl.constexpr, TILE: tl.constexpr):
    """The same with any number of programs: each takes every n-th of the ``total`` tiles of all pairs."""
    item = tl.program_id(0).to(tl.int64)
    while item < total:
        pair = item // num_tiles
        src = tl.load(src_ids + pair)
        dst = tl.load(dst_ids + pair)
        _copy_tile(table, table + (item - pair * num_tiles) * 6, src, dst, WIDTHS, TILE)
        item += tl.num_programs(0)


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["ids"])
def zero_tiles(table, ids, first, WIDTHS: tl.constexpr, TILE: tl.constexpr):
    """Zero the destinations of a tile (axis y) for one id (axis x); a negative id is skipped."""
    tile = table + (first + tl.program_id(1)).to(tl.int64) * 6
    entry = tl.load(ids + tl.program_id(0).to(tl.int64))
    if entry >= 0:
        to = tl.load(tile + 1) + entry * tl.load(tile + 3)
        nbytes = tl.load(tile + 4)
        width = tl.load(tile + 5)
        if WIDTHS >= 16:
            if width == 16:
                word = tl.arange(0, TILE // 16)[:, None]
                lane = word * 2 + tl.arange(0, 2)[None, :]
                mask = (word < nbytes // 16).broadcast_to(TILE // 16, 2)
                zeros = tl.zeros([TILE // 16, 2], dtype=tl.int64)
                tl.store(table + tl.multiple_of(to // 16 * 2, 2) + lane, zeros, mask=mask)
        if WIDTHS % 16 >= 4:
            if width == 4:
                table4 = table.to(tl.pointer_type(tl.int32))
                lane4 = tl.arange(0, TILE // 4)
                tl.store(table4 + to // 4 + lane4, tl.zeros([TILE // 4], dtype=tl.int32), mask=lane4 < nbytes // 4)
        if WIDTHS % 4 == 1:
            if width == 1:
                table1 = table.to(tl.pointer_type(tl.uint8))
                lane1 = tl.arange(0, TILE)
                tl.store(table1 + to + lane1, tl.zeros([TILE], dtype=tl.uint8), mask=lane1 < nbytes)


@triton.jit(do_not_specialize=["nanoseconds"])
def occupy(out, nanoseconds, THREADS: tl.constexpr):
    """Keep ``THREADS`` threads a program for so long: what a model does to a device, for the calibration.

    By the clock: programs that count steps share the arithmetic units unevenly, and the first are done at half time.
    """
    lane = tl.program_id(0) * THREADS + tl.arange(0, THREADS)
    began = globaltimer()
    taken = began - began
    while taken < nanoseconds:
        taken = globaltimer() - began
    tl.store(out + lane, taken)
