"""Where bytes stand, worked out from a layout's slices alone: the kit's own arithmetic, not the core's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from cachecore.layout import CacheLayout
from cachecore.schema import CacheTensorSpec
from cachecore.testing.faults import Fault

__all__ = ["Payload", "Places", "prove"]


class Payload(NamedTuple):
    """One page of one row of one spec: its pool, and its first byte there."""

    pool: int
    start: int
    nbytes: int


@dataclass(frozen=True)
class Places:
    """The bytes of an allocation of ``num_entries`` entries, ``pages_per_block`` pages to a block."""

    layout: CacheLayout
    specs: Sequence[CacheTensorSpec]
    num_entries: int
    pages_per_block: int

    @property
    def entries_per_block(self) -> int:
        """1 where an entry is a whole block, else the block's pages."""
        return self.pages_per_block // self.layout.pages_per_entry

    def payload(self, spec: int, row: int, block: int, page: int) -> Payload:
        """Where one page of one row stands."""
        place = self.layout.slices[spec][row]
        inner = self.layout.pools[place.pool].inner
        nbytes = place.nbytes // self.layout.pages_per_entry
        entry, inside = divmod(block * self.pages_per_block + page, self.layout.pages_per_entry)
        start = (place.outer * self.num_entries + entry) * inner + place.offset + inside * nbytes
        return Payload(place.pool, start, nbytes)

    @cached_property
    def parts(self) -> tuple[tuple[int, int, int], ...]:
        """``(spec, row, page)`` of everything in a block that has bytes."""
        return tuple(
            (index, row, page)
            for index, spec in enumerate(self.specs)
            if spec.page_nbytes
            for row in range(spec.num_rows)
            for page in range(self.pages_per_block)
        )

    def padding(self, block: int) -> list[Payload]:
        """The bytes of a block's entries that belong to no row."""
        found = []
        for (pool, outer), gaps in self._gaps.items():
            inner = self.layout.pools[pool].inner
            for entry in range(block * self.entries_per_block, (block + 1) * self.entries_per_block):
                base = (outer * self.num_entries + entry) * inner
                found += [Payload(pool, base + start, stop - start) for start, stop in gaps]
        return found

    @cached_property
    def _gaps(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        taken: dict[tuple[int, int], list[tuple[int, int]]] = {
            (number, outer): [] for number, pool in enumerate(self.layout.pools) for outer in range(pool.outer)
        }
        for rows in self.layout.slices:
            for place in rows:
                if place.nbytes:
                    taken[place.pool, place.outer].append((place.offset, place.offset + place.nbytes))
        gaps = {}
        for key, runs in taken.items():
            end, free = 0, []
            for start, stop in sorted(runs):
                if start > end:
                    free.append((end, start))
                end = max(end, stop)
            if end < (inner := self.layout.pools[key[0]].inner):
                free.append((end, inner))
            if free:
                gaps[key] = free
        return gaps

    def describe(self, pool: int, byte: int) -> str:
        """Whose byte this is, in words."""
        spec_of = self.layout.pools[pool]
        outer, within = divmod(byte, self.num_entries * spec_of.inner)
        entry, offset = divmod(within, spec_of.inner)
        block = entry // self.entries_per_block
        for index, rows in enumerate(self.layout.slices):
            for row, place in enumerate(rows):
                if (place.pool, place.outer) == (pool, outer) and 0 <= offset - place.offset < place.nbytes:
                    nbytes = place.nbytes // self.layout.pages_per_entry
                    page, at = divmod(offset - place.offset, nbytes)
                    page += (entry % self.entries_per_block) * self.layout.pages_per_entry
                    whose = f"cache {self.specs[index].name!r}, row {row}, block {block}, page {page}"
                    return f"byte {byte} of pool {pool} ({whose}, byte {at} of {nbytes})"
        return f"byte {byte} of pool {pool} (padding of block {block}, outer {outer})"

    def owner(self, pool: int, byte: int) -> tuple[int, int, int, int] | None:
        """``(spec, row, block, page)`` of the row that a byte belongs to; None for padding."""
        inner = self.layout.pools[pool].inner
        outer, within = divmod(byte, self.num_entries * inner)
        entry, offset = divmod(within, inner)
        for index, rows in enumerate(self.layout.slices):
            for row, place in enumerate(rows):
                if (place.pool, place.outer) == (pool, outer) and 0 <= offset - place.offset < place.nbytes:
                    page = (offset - place.offset) // (place.nbytes // self.layout.pages_per_entry)
                    page += entry * self.layout.pages_per_entry
                    return index, row, page // self.pages_per_block, page % self.pages_per_block
        return None


def prove(layout: CacheLayout, specs: Sequence[CacheTensorSpec], pages_per_block: int, what: str) -> None:
    """Every row has its bytes, apart from all others, inside its pool, on its own item size."""
    if layout.pages_per_entry not in (1, pages_per_block):
        raise Fault(
            f"{what}: pages_per_entry",
            expected=f"1 or {pages_per_block}, the pages of a block",
            found=layout.pages_per_entry,
        )
    if len(layout.slices) != len(specs):
        raise Fault(f"{what}: specs placed", expected=len(specs), found=len(layout.slices), cause="a spec was dropped")
    users: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    for spec, rows in zip(specs, layout.slices, strict=True):
        if len(rows) != spec.num_rows:
            raise Fault(
                f"{what}: rows placed of cache {spec.name!r}",
                expected=spec.num_rows,
                found=len(rows),
                cause="a loop over layers that stops early; scales or index rows forgotten on one tier",
            )
        for row, place in enumerate(rows):
            who = f"cache {spec.name!r} row {row}"
            pool = layout.pools[place.pool]
            nbytes = spec.page_nbytes * layout.pages_per_entry
            if (
                place.nbytes != nbytes
                or not 0 <= place.offset <= pool.inner - nbytes
                or not 0 <= place.outer < pool.outer
            ):
                raise Fault(
                    f"{what}: {who} has bytes {place.offset} to {place.offset + place.nbytes} of outer {place.outer}",
                    expected=f"{nbytes} bytes within {pool.inner} and an outer below {pool.outer}",
                    cause="rows sized for another dtype, or without their scales",
                )
            if nbytes and (place.offset % spec.desc.itemsize or pool.inner % spec.desc.itemsize):
                raise Fault(
                    f"{what}: {who} starts at byte {place.offset} of entries {pool.inner} bytes apart",
                    expected=f"multiples of the {spec.desc.itemsize} bytes of {spec.dtype}",
                )
            if nbytes:
                users.setdefault((place.pool, place.outer), []).append((place.offset, place.offset + nbytes, who))
    for (number, outer), runs in users.items():
        for (_, stop, one), (start, _, two) in pairwise(sorted(runs)):
            if start < stop:
                raise Fault(
                    f"{what}: byte {start} of pool {number}, outer {outer} belongs to {one} and to {two}",
                    expected="rows that do not overlap",
                    cause="an offset advanced by the unpadded or the wrong row's size",
                )
