"""The terminal form of a picture: a column of text stands for equally many bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.nbytes import format_nbytes
from cachecore.picture.drawing import colours_of, cut_text, ink_on, shade
from cachecore.picture.strips import CutPool, Line, cut_pools, line_nbytes, outer_name
from cachecore.plan_set import CachePlanSet

_GUTTER = 14
_INDENT_POOL: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "      "}
_INDENT: dict[str, Any] = {"initial_indent": "  ", "subsequent_indent": "    "}
_MOST_LINES = 8


def draw_letters(plans: CachePlanSet, counts: Mapping[str, int] | None, *, width: int, colour: bool) -> str:
    """Draw every pool of both tiers of every group."""
    names = list(dict.fromkeys(spec.name for plan in plans for spec in plan.specs))
    letters = _letters_of(names)
    colours = colours_of(names) if colour else {}
    lines = _legend([*(f"{letters[name]}{letters[name].lower()} {name}" for name in names), "· padding"], width)
    lines += wrap("(capitals for even rows; a column shows what takes most of its bytes)", width)
    for plan in plans:
        lines += ["", *wrap(f"group {plan.name}" + _totals(plan, counts), width)]
        for host in (False, True):
            layout = plan.host_layout if host else plan.layout
            unit = format_nbytes(plan.unit_nbytes(host=host))
            lines += wrap(f"{'host' if host else 'device'}: {layout.kind}, {unit} a {plan.unit}", width, **_INDENT)
            pen = _Pen(plan, layout, letters, colours, max(16, width - _GUTTER))
            for pool in cut_pools(plan, host=host):
                spec = layout.pools[pool.number]
                part = f", the first {pool.drawn} of {pool.entries:,} entries" if pool.drawn < pool.entries else ""
                lines += wrap(
                    f"pool {pool.number}  uint8[{spec.outer}, entries, {spec.inner}]{part}", width, **_INDENT_POOL
                )
                lines += pen.pool(pool)
    return "\n".join(lines) + "\n"


def _legend(entries: Sequence[str], width: int) -> list[str]:
    """The entries, as many on a line as there is room for."""
    lines: list[str] = []
    for entry in (cut_text(entry, width) for entry in entries):
        if lines and len(lines[-1]) + 2 + len(entry) <= width:
            lines[-1] += f"  {entry}"
        else:
            lines.append(entry)
    return lines


def _totals(plan: GroupPlan, counts: Mapping[str, int] | None) -> str:
    if counts is None:
        return ""
    count = counts[plan.name]
    return f", {count:,} {plan.unit}{'s' * (count != 1)}, {format_nbytes(plan.reserved_nbytes(count))}"


class _Pen:
    """What stays the same over the pools of one tier."""

    def __init__(
        self,
        plan: GroupPlan,
        layout: CacheLayout,
        letters: Mapping[str, str],
        colours: Mapping[str, str],
        room: int,
    ) -> None:
        self._plan = plan
        self._layout = layout
        self._letters = letters
        self._colours = colours
        self._room = room
        self._full = line_nbytes(plan)

    def pool(self, pool: CutPool) -> Iterator[str]:
        drawn = min(pool.strip_nbytes, self._full)
        columns = max(1, round(self._room * drawn / self._full))
        axis, marks = _axis(drawn, columns)
        yield f"{'':{_GUTTER}}{axis}"
        yield f"{'':{_GUTTER}}{marks}"
        shown: Sequence[Line | None] = pool.lines
        if len(pool.lines) > _MOST_LINES:
            shown = [*pool.lines[: _MOST_LINES - 3], None, pool.lines[-1]]
        for line in shown:
            if line is None:
                yield f"{'':{_GUTTER}}… {len(pool.lines) - _MOST_LINES + 2} more lines …"
                continue
            whole = line.nbytes == pool.strip_nbytes
            label = outer_name(self._plan, self._layout, pool.number, line.outer) if whole else f"at {line.start:,}"
            if len(label) >= _GUTTER:
                label = cut_text(label.partition(" ")[2], _GUTTER - 1)
            yield f"{label:>{_GUTTER - 1}} {self._line(line, drawn, columns)}"

    def _line(self, line: Line, drawn: int, columns: int) -> str:
        cells = [_owner(line, column * drawn / columns, (column + 1) * drawn / columns) for column in range(columns)]
        return "".join(
            self._painted(owner, len(list(group)))
            for owner, group in groupby(cell for cell in cells if cell is not None)
        )

    def _painted(self, owner: tuple[int | None, int], count: int) -> str:
        spec, row = owner
        if spec is None:
            return "·" * count
        name = self._plan.specs[spec].name
        letter = self._letters[name].lower() if row % 2 else self._letters[name]
        if not self._colours:
            return letter * count
        fill = shade(self._colours[name], 0.32 if row % 2 else 0)
        paper, ink = (";".join(str(int(one[at : at + 2], 16)) for at in (1, 3, 5)) for one in (fill, ink_on(fill)))
        return f"\x1b[48;2;{paper};38;2;{ink}m{letter * count}\x1b[0m"


def _owner(line: Line, start: float, stop: float) -> tuple[int | None, int] | None:
    """Spec and row of whatever takes most of the bytes ``start .. stop``; None beyond the line's end."""
    best: tuple[float, tuple[int | None, int]] | None = None
    for segment in line.segments:
        overlap = min(stop, segment.start + segment.nbytes) - max(start, segment.start)
        if overlap > 0 and (best is None or overlap > best[0]):
            best = overlap, (segment.spec, segment.row)
    return None if best is None else best[1]


def _axis(nbytes: int, columns: int) -> tuple[str, str]:
    """Labels and marks over ``columns`` columns that stand for ``nbytes`` bytes."""
    step = 1
    while step * columns / nbytes < 12:
        step *= 2
    end = format_nbytes(nbytes)
    labels, marks = "", ""
    for tick in range(0, nbytes, step):
        column = round(tick * columns / nbytes)
        label = format_nbytes(tick)
        if column < len(labels) or (tick and column + len(label) + 1 > columns - len(end)):
            continue
        labels = f"{labels:<{column}}{label} "
        marks = f"{marks:─<{column}}┬"
    return f"{labels:<{max(0, columns - len(end))}}{end}", f"{marks:─<{max(1, columns - 1)}}┐"


def _letters_of(names: Sequence[str]) -> dict[str, str]:
    """A letter for each name: its own first free one, else the next of the alphabet."""
    letters: dict[str, str] = {}
    for name in names:
        wanted = [*(char.upper() for char in name if char.isalpha()), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
        letters[name] = next((char for char in wanted if char not in letters.values()), "?")
    return letters
