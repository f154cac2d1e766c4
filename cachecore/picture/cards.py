"""The cards of a picture: bars that compare pools, and pools cut open. Bytes are drawn to scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.nbytes import exact_nbytes, format_nbytes
from cachecore.picture.drawing import INK, SOFT, Canvas, cut_to, ink_on, mono_width, shade
from cachecore.picture.strips import CutPool, Line, cut_pools, line_nbytes, outer_name

GUTTER = 84
"""Pixels left of a strip for its label."""

_MOST_LINES = 128
"""A pool with more lines is shown in part; the picture says how much is left out."""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a bar."""

    name: str
    nbytes: int
    fill: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled bar of shares; ``note`` stands after its size."""

    label: str
    shares: tuple[Share, ...]
    note: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole bar."""
        return sum(share.nbytes for share in self.shares)


def pool_bars(plan: GroupPlan, colours: Mapping[str, str], *, host: bool, num_units: int = 1) -> list[Bar]:
    """A bar for each pool: what each cache takes of it, and the padding."""
    layout = plan.host_layout if host else plan.layout
    entries = plan.num_entries(num_units, host=host)
    tier = "host" if host else "device"
    bars = []
    for number, pool in enumerate(layout.pools):
        taken: dict[str, int] = {}
        for spec, rows in zip(plan.specs, layout.slices, strict=True):
            nbytes = sum(place.nbytes for place in rows if place.pool == number) * entries
            if nbytes:
                taken[spec.name] = taken.get(spec.name, 0) + nbytes
        shares = [Share(name, nbytes, colours[name]) for name, nbytes in taken.items()]
        padding = pool.entry_nbytes * entries - sum(taken.values())
        if padding:
            shares.append(Share("padding", padding, "url(#padding)"))
        if shares:
            bars.append(Bar(f"{tier} pool {number}", tuple(shares)))
    return bars


def draw_bars(canvas: Canvas, x: float, y: float, width: float, bars: Sequence[Bar], *, summed: str) -> float:
    """Draw bars on one scale with a common axis; returns where the next thing may stand.

    ``summed`` is what they are sums over: the caches of a pool alternate, so no byte of a bar has a place.
    """
    label, total, height, gap = 118, 190, 20, 6
    room = width - label - total
    canvas.text(x + label, y + 6, f"sums over {summed}; positions are in the strips below", size=10, colour=SOFT)
    y += 14
    most = max(bar.nbytes for bar in bars)
    for number, bar in enumerate(bars):
        top = y + number * (height + gap)
        canvas.text(x + label - 10, top + 14, cut_to(bar.label, label - 10, 11), anchor="end")
        at = x + label
        for share in bar.shares:
            wide = room * share.nbytes / most
            told = f"{share.name}: {exact_nbytes(share.nbytes)}"
            canvas.rect(at, top, wide, height, share.fill, title=told)
            _inside(canvas, at, top + 14, wide, [f"{share.name} {format_nbytes(share.nbytes)}", share.name], share.fill)
            at += wide
        canvas.rect(x + label, top, at - x - label, height, "none", outline=SOFT)
        canvas.text(at + 8, top + 14, format_nbytes(bar.nbytes) + bar.note, colour=SOFT)
    bottom = y + len(bars) * (height + gap)
    canvas.axis(x + label, bottom, room, most)
    return bottom + 26


def line_height(plan: GroupPlan) -> float:
    """Pixels of a line: what lets the longer of both tiers stay on a page."""
    longest = max(
        sum(min(len(pool.lines), _MOST_LINES) for pool in cut_pools(plan, host=host)) for host in (False, True)
    )
    return min(20.0, max(5.0, 620 / max(1, longest)))


def draw_tier(
    canvas: Canvas, x: float, y: float, width: float, plan: GroupPlan, colours: Mapping[str, str], *, host: bool
) -> float:
    """Draw every pool of one tier, cut open; returns where the next thing may stand."""
    layout = plan.host_layout if host else plan.layout
    tier = "host" if host else "device"
    canvas.text(x, y + 12, f"{tier}: {cut_to(layout.kind, width - 90, 13)}", size=13, bold=True, font="s")
    y += 20
    pen = _Pen(canvas, plan, layout, colours, line_height(plan))
    for pool in cut_pools(plan, host=host):
        y = pen.card(x, y, width, pool)
    return y


@dataclass(frozen=True, slots=True)
class _Pen:
    """What stays the same over the cards of one tier."""

    canvas: Canvas
    plan: GroupPlan
    layout: CacheLayout
    colours: Mapping[str, str]
    height: float

    def card(self, x: float, y: float, width: float, pool: CutPool) -> float:
        spec = self.layout.pools[pool.number]
        canvas, unit = self.canvas, self.plan.unit
        room = width - GUTTER
        full = line_nbytes(self.plan)
        drawn = min(pool.strip_nbytes, full)
        zoom = 1
        while drawn * zoom * 2 <= full and drawn * zoom * 4 < full * 2:
            zoom *= 2
        scale = room / full * zoom
        what = "kernel page" if self.layout.pages_per_entry < self.plan.pages_per_unit else unit
        canvas.text(x, y + 12, f"pool {pool.number}: uint8[{spec.outer}, entries, {spec.inner}]", bold=True)
        canvas.text(x, y + 26, cut_to(self._facts(pool, what, zoom), width, 10), size=10, colour=SOFT)
        y += 34
        if pool.drawn > 1 and pool.strip_nbytes <= full:
            y = self._entries(x + GUTTER, y, pool, scale, what)
        top = y
        shown = _shown(pool.lines)
        for line in shown:
            if line is None:
                canvas.text(
                    x + GUTTER,
                    y + 11,
                    f"… {len(pool.lines) - len(shown) + 1} more lines like these …",
                    size=10,
                    colour=SOFT,
                )
                y += 16
                continue
            self._label(x, y, pool, line, (y - top) / self.height)
            self._line(x + GUTTER, y, line, scale, pool)
            y += self.height
        canvas.axis(x + GUTTER, y + 3, drawn * scale, drawn)
        return y + 34

    def _facts(self, pool: CutPool, what: str, zoom: int) -> str:
        layout, number = self.layout, pool.number
        spec = layout.pools[number]
        held = sum(place.nbytes for rows in layout.slices for place in rows if place.pool == number)
        padding, all_of_it = (spec.entry_nbytes - held) * pool.entries, spec.entry_nbytes * pool.entries
        told = f"entry = {what}, {format_nbytes(all_of_it)} a {self.plan.unit}, "
        told += f"padding {format_nbytes(padding)} ({padding / all_of_it:.2%})" if padding else "no padding"
        told += f", the first {pool.drawn} of {pool.entries:,} entries" if pool.drawn < pool.entries else ""
        return told + (f", drawn {zoom} x wider" if zoom > 1 else "")

    def _entries(self, x: float, y: float, pool: CutPool, scale: float, what: str) -> float:
        """Brackets over the entries that are drawn."""
        wide = pool.inner * scale
        name = "page" if what == "kernel page" else what
        for entry in range(pool.drawn):
            left, right = x + entry * wide, x + (entry + 1) * wide
            if wide > 5:
                self.canvas.line(left + 1, y + 12, right - 1, y + 12, SOFT)
                self.canvas.line(left + 1, y + 12, left + 1, y + 15, SOFT)
                self.canvas.line(right - 1, y + 12, right - 1, y + 15, SOFT)
            for label in (f"{name} {entry}", str(entry)):
                if mono_width(label, 9.5) + 6 < wide:
                    self.canvas.text(left + wide / 2, y + 9, label, size=9.5, colour=SOFT, anchor="middle")
                    break
        return y + 18

    def _label(self, x: float, y: float, pool: CutPool, line: Line, number: float) -> None:
        every = next(step for step in (1, 2, 5, 10, 20, 50) if step * self.height >= 10)
        if round(number) % every:
            return
        size = min(10.0, max(8.0, self.height))
        whole = line.nbytes == pool.strip_nbytes
        told = outer_name(self.plan, self.layout, pool.number, line.outer) if whole else f"at {line.start:,}"
        baseline = y + self.height / 2 + size * 0.36
        self.canvas.text(x + GUTTER - 8, baseline, cut_to(told, GUTTER - 8, size), size=size, colour=SOFT, anchor="end")

    def _line(self, x: float, y: float, line: Line, scale: float, pool: CutPool) -> None:
        canvas = self.canvas
        high = self.height - (1 if self.height >= 8 else 0.6)
        for segment in line.segments:
            left, wide = x + segment.start * scale, segment.nbytes * scale
            at = line.start + segment.start
            where = f"bytes {at:,} to {at + segment.nbytes:,} at outer {line.outer} of pool {pool.number}"
            if segment.spec is None:
                canvas.rect(left, y, wide, high, "url(#padding)", title=f"padding, {where}")
                continue
            spec = self.plan.specs[segment.spec]
            fill = shade(self.colours[spec.name], 0.32 if segment.row % 2 else 0)
            row = spec.row_ids[segment.row] if spec.consumer_rows is None else spec.consumer_rows[segment.row]
            kind = "layer" if spec.consumer_rows is None else "consumer row"
            canvas.rect(left, y, wide, high, fill, title=f"{spec.name} {kind} {row}, {where}")
            if wide > 3 and segment.start and segment.first:
                canvas.line(left, y, left, y + high, "#ffffff", 0.8)
            for page in segment.page_starts:
                if wide / (len(segment.page_starts) + 1) < 5:
                    break
                for top in (y, y + high * 0.84):  # the name stands between the notches
                    canvas.line(x + page * scale, top, x + page * scale, top + high * 0.16, "#ffffff", 0.8)
            if self.height >= 11 and segment.longest:
                labels = [f"{spec.name} {row}", str(row)]
                _inside(canvas, left, y + high / 2 + 3.4, wide, labels, fill, size=9.5)
        for entry in range(1, pool.drawn):
            border = entry * pool.inner - line.start
            if 0 < border < line.nbytes and pool.inner * scale > 5:
                canvas.line(x + border * scale, y, x + border * scale, y + high, INK, 1)


def _inside(
    canvas: Canvas, x: float, y: float, width: float, texts: Sequence[str], fill: str, *, size: float = 10.5
) -> None:
    """The first of ``texts`` that fits into ``width``, if any does."""
    for text in texts:
        if mono_width(text, size) + 8 <= width:
            colour = ink_on(fill) if fill.startswith("#") else INK
            if not fill.startswith("#"):
                canvas.rect(
                    x + width / 2 - mono_width(text, size) / 2 - 3,
                    y - size,
                    mono_width(text, size) + 6,
                    size + 4,
                    "#ffffff",
                )
            canvas.text(x + width / 2, y, text, size=size, colour=colour, anchor="middle")
            return


def _shown(lines: Sequence[Line]) -> list[Line | None]:
    """All lines, or the first and last of too many with None for those between."""
    if len(lines) <= _MOST_LINES:
        return list(lines)
    return [*lines[:96], None, *lines[-16:]]
