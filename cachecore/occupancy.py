"""Who holds which byte of an entry: the rows of every pool in the order they stand, and the gaps between."""

from __future__ import annotations

from typing import NamedTuple

from cachecore.layout import CacheLayout

__all__ = ["Held", "occupancy"]


class Held(NamedTuple):
    """Bytes ``offset .. offset + nbytes`` of one entry at one outer index.

    ``spec`` is the index of the spec whose ``row`` stands here, or None for padding.
    """

    offset: int
    nbytes: int
    spec: int | None
    row: int

    @property
    def end(self) -> int:
        """One past the last byte."""
        return self.offset + self.nbytes


def occupancy(layout: CacheLayout) -> tuple[tuple[tuple[Held, ...], ...], ...]:
    """For every pool and outer index, what fills the entry from its first byte to its last.

    The lengths of one tuple add up to the pool's ``inner``; rows of zero bytes hold nothing.
    """
    held: list[list[list[Held]]] = [[[] for _ in range(pool.outer)] for pool in layout.pools]
    for spec, rows in enumerate(layout.slices):
        for row, (pool, outer, offset, nbytes) in enumerate(rows):
            if nbytes:
                held[pool][outer].append(Held(offset, nbytes, spec, row))
    return tuple(
        tuple(_with_gaps(sorted(rows), layout.pools[pool].inner) for rows in by_outer)
        for pool, by_outer in enumerate(held)
    )


def _with_gaps(rows: list[Held], inner: int) -> tuple[Held, ...]:
    filled: list[Held] = []
    end = 0
    for row in rows:
        if row.offset > end:
            filled.append(Held(end, row.offset - end, None, 0))
        filled.append(row)
        end = row.end
    if end < inner:
        filled.append(Held(end, inner - end, None, 0))
    return tuple(filled)
