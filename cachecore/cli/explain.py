"""``cachecore explain``: every tensor, pool, row, padding byte and choice of a saved plan, with its reason."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from cachecore.cli.options import add_json, counts_of, unit_counts
from cachecore.cli.terminal import note, print_json, read_plan, show, width_of_terminal, write_text
from cachecore.explain import explain_plan, explain_text
from cachecore.picture import layout_svg, layout_text

_DESCRIPTION = """\
Explain a saved plan: every tensor, pool, row and padding byte, and why each stands where it does.

No device is needed and no plugin is loaded: a plan says everything about itself.
"""

_EPILOG = """\
examples:
  cachecore explain plan.json                                 the whole explanation
  cachecore explain plan.json --text                          with the layout drawn in letters
  cachecore explain plan.json --picture layout.svg            with a picture to scale
  cachecore explain plan.json --blocks full=1024,sliding=96   with the bytes of an allocation
  cachecore explain plan.json --json | jq '.groups[].device.pools[].gaps'
"""


def add_command(commands: Any, style: dict[str, Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "explain", help="explain a saved plan, and draw it", description=_DESCRIPTION, epilog=_EPILOG, **style
    )
    parser.add_argument("plan", metavar="PLAN.json", help="a plan as CachePlanSet.dumps() writes it; - reads it here")
    parser.add_argument("--text", action="store_true", help="draw the memory layout in letters, too")
    parser.add_argument("--picture", metavar="OUT.svg", help="write a picture of the memory layout, to scale")
    parser.add_argument(
        "--blocks",
        type=unit_counts,
        metavar="N",
        help="blocks (slots) to allocate: a number, or one a group, name=N,...",
    )
    add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Explain one plan."""
    plans = read_plan(options.plan)
    counts = counts_of(plans, options.blocks)
    if options.picture is not None:
        write_text(options.picture, layout_svg(plans, counts))
        note(f"wrote {options.picture}")
    width = width_of_terminal()
    if options.json:
        data = explain_plan(plans, counts)
        if options.picture is not None:
            data["picture"] = options.picture
        if options.text:
            data["text"] = layout_text(plans, counts, width=width)
        print_json(data)
        return 0
    show(explain_text(plans, counts, width=width), end="")
    if options.text:
        show("\n" + layout_text(plans, counts, width=width, colour=_coloured()), end="")
    return 0


def _coloured() -> bool:
    """Whether the terminal shows 24-bit colours and its user wants any."""
    wanted = "NO_COLOR" not in os.environ and os.environ.get("COLORTERM") in ("truecolor", "24bit")
    return wanted and sys.stdout.isatty()
