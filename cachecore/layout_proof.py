"""The proof of a layout: every row placed once, apart from all others, aligned as claimed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from cachecore.errors import LayoutError
from cachecore.schema import CacheTensorSpec

if TYPE_CHECKING:
    from cachecore.layout import CacheLayout, CacheSlice

__all__ = ["prove_layout"]

Interval = tuple[int, int, int, int]
"""First byte, end, spec index, row."""


def prove_layout(layout: CacheLayout, specs: Sequence[CacheTensorSpec], *, host: bool) -> None:
    """Raise :class:`~cachecore.errors.LayoutError` for the first thing that does not hold."""
    if len(layout.slices) != len(specs):
        raise LayoutError(f"layout {layout.kind!r} places {len(layout.slices)} specs, but there are {len(specs)}")
    taken: dict[tuple[int, int], list[Interval]] = {}
    for index, (spec, rows) in enumerate(zip(specs, layout.slices, strict=True)):
        if len(rows) != spec.num_rows:
            raise LayoutError(
                f"layout {layout.kind!r} places {len(rows)} rows of cache {spec.name!r}, which has {spec.num_rows}; "
                "every row must be placed exactly once",
                cache=spec.name,
            )
        for row, place in enumerate(rows):
            _prove_row(layout, spec, row, place, host=host)
            if place.nbytes:
                interval = place.offset, place.offset + place.nbytes, index, row
                taken.setdefault((place.pool, place.outer), []).append(interval)
        _prove_alignment(layout, spec, rows)
    for (pool, _), intervals in taken.items():
        _prove_apart(layout, specs, pool, intervals)
    placed = Counter(place.pool for rows in layout.slices for place in rows)
    for number, pool_spec in enumerate(layout.pools):
        if pool_spec.outer > 2 * max(1, placed[number]):
            raise LayoutError(
                f"pool {number} of layout {layout.kind!r} has outer {pool_spec.outer}, but {placed[number]} rows stand "
                "in it; most of its memory would hold none",
                pool=number,
            )
        if pool_spec.inner % pool_spec.stride_multiple:
            raise LayoutError(
                f"pool {number} of layout {layout.kind!r}: entries are {pool_spec.inner} bytes apart, "
                f"which is no multiple of the claimed {pool_spec.stride_multiple}",
                pool=number,
            )


def _prove_row(layout: CacheLayout, spec: CacheTensorSpec, row: int, place: CacheSlice, *, host: bool) -> None:
    number, outer, offset, length = place
    if not (type(number) is type(outer) is type(offset) is type(length) is int):
        raise _fault(layout, spec, row, f"is placed by {tuple(place)!r}; expected four plain integers")
    nbytes = spec.page_nbytes * layout.pages_per_entry
    itemsize = spec.desc.itemsize
    if not (0 <= number < len(layout.pools) and 0 <= outer < layout.pools[number].outer):
        raise _fault(layout, spec, row, f"lies in pool {number}, outer {outer}, which does not exist")
    if length != nbytes:
        raise _fault(layout, spec, row, f"is given {length} bytes an entry, but needs {nbytes}")
    pool = layout.pools[number]
    if offset < 0 or offset + length > pool.inner:
        what = f"takes bytes {offset} to {offset + length} of pool {number}'s {pool.inner} an entry"
        raise _fault(layout, spec, row, what)
    if not length:
        return
    if offset % itemsize or pool.inner % itemsize or pool.base_alignment % itemsize:
        what = (
            f"starts at byte {offset} of entries {pool.inner} bytes apart (base alignment {pool.base_alignment}); "
            f"all must be multiples of the {itemsize} bytes of {spec.dtype}"
        )
        raise _fault(layout, spec, row, what)
    if spec.per_row_contiguous and not host and length != pool.inner:
        what = f"asked for a contiguous row, but its entries are {pool.inner} bytes apart and hold {length}"
        raise _fault(layout, spec, row, what)


def _prove_alignment(layout: CacheLayout, spec: CacheTensorSpec, rows: Sequence[CacheSlice]) -> None:
    first_in_entry: dict[tuple[int, int], int] = {}
    for pool, outer, offset, length in rows:
        if length and offset <= first_in_entry.get((pool, outer), offset):
            first_in_entry[pool, outer] = offset
    for (number, _), offset in first_in_entry.items():
        pool_spec = layout.pools[number]
        align = min(spec.alignment, pool_spec.alignment)
        if offset % align or pool_spec.inner % align or pool_spec.base_alignment % align:
            raise LayoutError(
                f"cache {spec.name!r} in pool {number} of layout {layout.kind!r}: byte {offset} of entries "
                f"{pool_spec.inner} bytes apart is not aligned to {align} as claimed",
                cache=spec.name,
                pool=number,
            )


def _prove_apart(layout: CacheLayout, specs: Sequence[CacheTensorSpec], pool: int, intervals: list[Interval]) -> None:
    intervals.sort()
    for (_, stop, index, row), (start, _, next_index, next_row) in pairwise(intervals):
        if start < stop:
            raise LayoutError(
                f"layout {layout.kind!r}, pool {pool}: row {row} of cache {specs[index].name!r} ends at byte {stop}, "
                f"but row {next_row} of cache {specs[next_index].name!r} starts at byte {start}; "
                "rows must not overlap",
                pool=pool,
            )


def _fault(layout: CacheLayout, spec: CacheTensorSpec, row: int, what: str) -> LayoutError:
    return LayoutError(
        f"layout {layout.kind!r}: row {row} (id {spec.row_ids[row]}) of cache {spec.name!r} {what}",
        cache=spec.name,
        row=row,
    )
