"""Pictures of a memory layout, to scale: an SVG for a page, letters for a terminal. Touches no device.

One block (or slot) is cut open on both tiers. A strip is what the block takes at one outer index of
a pool: bytes that follow one another in memory. Both tiers of a group share one scale.
"""

from __future__ import annotations

from collections.abc import Mapping

from cachecore.group_plan import GroupPlan
from cachecore.nbytes import format_nbytes
from cachecore.picture.cards import Bar, Share, draw_bars, draw_tier, pool_bars
from cachecore.picture.drawing import FAINT, INK, SOFT, Canvas, colours_of, cut_to, shade
from cachecore.picture.letters import draw_letters
from cachecore.plan import BlockCachePlan
from cachecore.plan_set import CachePlanSet

__all__ = ["layout_svg", "layout_text"]

_WIDTH, _MARGIN, _GAP = 1280, 32, 48

_HOW_TO_READ = (
    "One block of every group, cut open. A strip is what the block takes at one outer index of a pool: bytes that "
    "follow one another. Page borders are notched."
)


def layout_svg(plans: CachePlanSet, counts: Mapping[str, int] | None = None) -> str:
    """Draw the layout of ``plans`` as an SVG document.

    Bars compare the pools of one block (with ``counts``, also all memory); below them every pool is
    cut open, device on the left, host on the right, rows coloured by cache, padding hatched.
    """
    _check(plans)
    colours = colours_of([spec.name for plan in plans for spec in plan.specs])
    canvas = Canvas(_WIDTH)
    width = _WIDTH - 2 * _MARGIN
    title = f"Cache layout for {plans.device}, planned by {plans.backend}"
    canvas.text(_MARGIN, 44, title, size=20, bold=True, font="s")
    canvas.text(_MARGIN, 64, _HOW_TO_READ, size=10.5, colour=SOFT)
    y = _legend(canvas, 82, plans, colours)
    if counts is not None:
        bars = [_total_bar(plan, counts[plan.name], colours) for plan in plans]
        if any(bar.nbytes for bar in bars):
            y = _heading(canvas, y + 16, "All device memory, to scale", "")
            y = draw_bars(canvas, _MARGIN, y, width, [bar for bar in bars if bar.nbytes], summed="all blocks and slots")
    for plan in plans:
        y = _heading(canvas, y + 16, f"Group {plan.name}", _group_facts(plan))
        bars = [bar for host in (False, True) for bar in pool_bars(plan, colours, host=host)]
        if not bars:
            canvas.text(_MARGIN, y + 12, "no cache of this group holds any bytes", colour=SOFT)
            y += 24
            continue
        y = draw_bars(canvas, _MARGIN, y, width, bars, summed=f"one {plan.unit}")
        column = (width - _GAP) / 2
        right = _MARGIN + column + _GAP
        left_end = draw_tier(canvas, _MARGIN, y + 10, column, plan, colours, host=False)
        right_end = draw_tier(canvas, right, y + 10, column, plan, colours, host=True)
        y = max(left_end, right_end)
    return canvas.render(title)


def layout_text(
    plans: CachePlanSet, counts: Mapping[str, int] | None = None, *, width: int = 88, colour: bool = False
) -> str:
    """Draw the layout of ``plans`` with letters, ``width`` columns wide; ``colour`` adds terminal colours.

    Every cache has a letter, upper case for its even rows and lower case for its odd ones; padding
    is a dot. A column stands for equally many bytes on both tiers of a group and shows what takes
    most of them.
    """
    _check(plans)
    return draw_letters(plans, counts, width=width, colour=colour)


def _check(plans: object) -> None:
    if not isinstance(plans, CachePlanSet):
        raise TypeError(f"plans must be a CachePlanSet, not {plans!r}")


def _legend(canvas: Canvas, y: float, plans: CachePlanSet, colours: Mapping[str, str]) -> float:
    told: dict[str, list[str]] = {name: [] for name in colours}
    rows = dict.fromkeys(colours, 0)
    for spec in (spec for plan in plans for spec in plan.specs):
        shape = ", ".join(map(str, spec.shape))
        told[spec.name] += [f"{spec.dtype} ({shape})"]
        rows[spec.name] += spec.num_rows
    entries = [
        (name, colour, f"{' and '.join(dict.fromkeys(told[name]))}, {rows[name]} row{'s' * (rows[name] != 1)}")
        for name, colour in colours.items()
    ]
    entries.append(("padding", "", "bytes that belong to nobody"))
    columns = min(5, len(entries))
    wide = (_WIDTH - 2 * _MARGIN) / columns
    for number, (name, colour, facts) in enumerate(entries):
        x, top = _MARGIN + number % columns * wide, y + number // columns * 40
        if colour:
            canvas.rect(x, top, 13, 26, colour, title="even rows")
            canvas.rect(x + 13, top, 13, 26, shade(colour, 0.32), title="odd rows")
        else:
            canvas.rect(x, top, 26, 26, "url(#padding)", outline=FAINT)
        canvas.text(x + 34, top + 10, cut_to(name, wide - 44, 12), size=12, bold=True)
        canvas.text(x + 34, top + 24, cut_to(facts, wide - 44, 10), size=10, colour=SOFT)
    return y + -(-len(entries) // columns) * 40


def _heading(canvas: Canvas, y: float, title: str, facts: str) -> float:
    canvas.line(_MARGIN, y, _WIDTH - _MARGIN, y, FAINT)
    canvas.text(_MARGIN, y + 24, title, size=15, bold=True, font="s", colour=INK)
    if facts:
        canvas.text(_MARGIN, y + 41, cut_to(facts, _WIDTH - 2 * _MARGIN, 11), colour=SOFT)
        y += 17
    return y + 38


def _group_facts(plan: GroupPlan) -> str:
    facts = []
    if isinstance(plan, BlockCachePlan):
        geometry = plan.geometry
        facts.append(f"{geometry.logical_block_size} tokens a block")
        if geometry.pages_per_block > 1:
            facts.append(f"{geometry.pages_per_block} kernel pages of {geometry.page_size}")
        if plan.group.window is not None:
            facts.append(f"window of {plan.group.window}")
    facts.append(f"policy {plan.policy} {plan.policy_version}")
    facts.append(f"one {plan.unit} takes {format_nbytes(plan.unit_nbytes())} on the device")
    facts.append(f"{format_nbytes(plan.unit_nbytes(host=True))} on the host, all to scale")
    return ", ".join(facts)


def _total_bar(plan: GroupPlan, count: int, colours: Mapping[str, str]) -> Bar:
    """One bar for all pools of a group."""
    shares: dict[tuple[str, str], int] = {}
    for bar in pool_bars(plan, colours, host=False, num_units=count):
        for share in bar.shares:
            shares[share.name, share.fill] = shares.get((share.name, share.fill), 0) + share.nbytes
    note = f", {count:,} {plan.unit}{'s' * (count != 1)}"
    return Bar(plan.name, tuple(Share(name, nbytes, fill) for (name, fill), nbytes in shares.items()), note)
