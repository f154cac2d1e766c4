"""One block or slot cut open: what stands at each byte, as lines of equally many bytes to draw to scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.occupancy import Held, occupancy

_FEW_ROWS = 8
"""A strip with at most so many rows an entry is drawn on one line."""

_MANY_LINES = 40
"""A strip with more rows is broken into about so many lines at most."""

_MOST_LINES = 1 << 14
"""No strip is broken into more: a damaged plan may have padding of any length."""


_MOST_ENTRIES = 64
"""A block of more entries is drawn as its first ones: all of them hold the same."""

_MOST_NOTCHES = 256
"""A segment with more page borders has them too close to be drawn."""


class Segment(NamedTuple):
    """Bytes ``start .. start + nbytes`` of a line; ``spec`` is None for padding.

    A row that continues on the next line is several segments: ``first`` marks the one with its first
    byte, ``longest`` the one to write its name on. ``page_starts`` are the bytes of the line at which
    a further page of the row begins.
    """

    start: int
    nbytes: int
    spec: int | None
    row: int
    first: bool
    longest: bool
    page_starts: tuple[int, ...]


class Line(NamedTuple):
    """Bytes ``start .. start + nbytes`` of what one block takes at outer index ``outer``."""

    outer: int
    start: int
    nbytes: int
    segments: tuple[Segment, ...]


class CutPool(NamedTuple):
    """One pool, cut open: at every outer index, a block takes ``entries`` entries of ``inner`` bytes.

    ``drawn`` of them are broken into lines.
    """

    number: int
    inner: int
    entries: int
    drawn: int
    lines: tuple[Line, ...]

    @property
    def strip_nbytes(self) -> int:
        """Bytes that are drawn of one block at one outer index; they follow one another in memory."""
        return self.inner * self.drawn


def cut_pools(plan: GroupPlan, *, host: bool) -> tuple[CutPool, ...]:
    """Every pool of a tier that holds bytes, broken into lines of :func:`line_nbytes` bytes."""
    layout = plan.host_layout if host else plan.layout
    entries = plan.num_entries(1, host=host)
    drawn = min(entries, _MOST_ENTRIES)
    limit = line_nbytes(plan)
    held = occupancy(layout)
    return tuple(
        CutPool(
            number,
            pool.inner,
            entries,
            drawn,
            tuple(
                line
                for outer, filled in enumerate(held[number])
                for line in _lines(outer, _strip(layout, filled, pool.inner, drawn), limit)
            ),
        )
        for number, pool in enumerate(layout.pools)
        if pool.entry_nbytes
    )


def line_nbytes(plan: GroupPlan) -> int:
    """Bytes of a full line, the same on both tiers, so that one scale serves both.

    The widest strip of the device with few rows; where every strip holds many, its widest row, or
    several of them.
    """
    entries, host_entries = (min(plan.num_entries(1, host=host), _MOST_ENTRIES) for host in (False, True))
    short, long = [], []
    for pool, held in zip(plan.layout.pools, occupancy(plan.layout), strict=True):
        rows = max((sum(one.spec is not None for one in filled) for filled in held), default=0)
        if rows and rows <= _FEW_ROWS:
            short.append(pool.inner * entries)
        elif rows:
            row = max(one.nbytes for filled in held for one in filled if one.spec is not None)
            lines = -(-pool.inner * entries // row)
            long.append(row * -(-lines // _MANY_LINES))
    tiers = ((plan.layout, entries), (plan.host_layout, host_entries))
    longest = max((pool.inner * count for layout, count in tiers for pool in layout.pools), default=0)
    return max(*(short or long), 1, -(-longest // _MOST_LINES))


def outer_name(plan: GroupPlan, layout: CacheLayout, pool: int, outer: int) -> str:
    """The layer or consumer row whose bytes stand at an outer index, where it is one."""
    found = {
        f"layer {spec.row_ids[row]}" if spec.consumer_rows is None else f"row {spec.consumer_rows[row]}"
        for spec, places in zip(plan.specs, layout.slices, strict=True)
        for row, place in enumerate(places)
        if place.pool == pool and place.outer == outer and place.nbytes
    }
    return found.pop() if len(found) == 1 else f"outer {outer}"


def _strip(layout: CacheLayout, filled: Sequence[Held], inner: int, entries: int) -> Iterator[tuple[int, Held, int]]:
    """Where each piece of a block's strip starts, what it is, and how many pages it has."""
    for entry in range(entries):
        for one in filled:
            yield entry * inner + one.offset, one, layout.pages_per_entry if one.spec is not None else 1


def _lines(outer: int, strip: Iterable[tuple[int, Held, int]], limit: int) -> Iterator[Line]:
    """Break a strip into lines, and rows where a line ends."""
    lines: list[list[Segment]] = []
    end = 0
    for start, one, pages in strip:
        end = start + one.nbytes
        cuts = [start, *range((start // limit + 1) * limit, end, limit), end]
        longest = max(stop - begin for begin, stop in pairwise(cuts))
        for begin, stop in pairwise(cuts):
            number, at = divmod(begin, limit)
            while number >= len(lines):
                lines.append([])
            inside = tuple(page - number * limit for page in _page_starts(start, one.nbytes, pages, begin, stop))
            main = stop - begin == longest
            lines[number].append(Segment(at, stop - begin, one.spec, one.row, begin == start, main, inside))
            longest = longest + 1 if main else longest  # only the first of equally long ones
    for number, segments in enumerate(lines):
        yield Line(outer, number * limit, min(limit, end - number * limit), tuple(segments))


def _page_starts(start: int, nbytes: int, pages: int, begin: int, stop: int) -> Sequence[int]:
    """Where further pages of a row of ``nbytes`` at ``start`` begin within ``begin .. stop``, unless they are many."""
    if pages < 2 or not nbytes:
        return ()
    page = nbytes // pages
    first, last = max(1, (begin - start) // page + 1), min(pages - 1, (stop - 1 - start) // page)
    return range(start + first * page, start + last * page + 1, page) if last - first < _MOST_NOTCHES else ()
