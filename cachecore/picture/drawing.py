"""A small SVG writer: rectangles, lines, text, byte axes. Everything is kept on one canvas of fixed width."""

from __future__ import annotations

from collections.abc import Sequence
from colorsys import hls_to_rgb
from html import escape

from cachecore.nbytes import format_nbytes

MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SANS = "'DejaVu Sans', Verdana, 'Segoe UI', sans-serif"
INK, SOFT, FAINT = "#1f2933", "#5b6770", "#c8d0d6"

PALETTE = (
    *("#3b6fb0", "#e08214", "#2f9e8f", "#c8453b", "#7a5ea8", "#5b9e3a", "#b5568f", "#8a6a3d"),
    *("#4aa3c7", "#a3a02a", "#6b7a8f", "#d46a6a"),
)
"""Told apart by people who see few colours: neighbours differ in lightness too."""

_PADDING = (
    '<pattern id="padding" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="5" height="5" fill="#f4f5f6"/><line x1="0" y1="0" x2="0" y2="5" stroke="#9aa5ad" stroke-width="1.6"/>'
    "</pattern>"
)


class Canvas:
    """SVG parts and how far down they reach."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.height = 0.0
        self._parts: list[str] = []

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, *, title: str = "", outline: str = ""
    ) -> None:
        """A filled rectangle; ``title`` is shown where a pointer rests on it."""
        stroke = f' stroke="{outline}" stroke-width="0.8"' if outline else ""
        body = f"><title>{_escaped(title)}</title></rect>" if title else "/>"
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"{stroke}{body}'
        )
        self.height = max(self.height, y + height)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> None:
        """A straight line."""
        self._parts.append(
            f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{colour}" stroke-width="{width}"/>'
        )
        self.height = max(self.height, y1, y2)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11,
        colour: str = INK,
        anchor: str = "start",
        bold: bool = False,
        font: str = "m",
    ) -> None:
        """Text with its baseline at ``y``; ``font`` is ``m`` for equal widths or ``s``."""
        weight = ' font-weight="bold"' if bold else ""
        at = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(
            f'<text class="{font}" x="{x:.2f}" y="{y:.2f}" font-size="{size:g}" fill="{colour}"{at}{weight}>'
            f"{_escaped(text)}</text>"
        )
        self.height = max(self.height, y + size * 0.3)

    def axis(self, x: float, y: float, width: float, nbytes: int, *, rise: float = 0) -> None:
        """Bytes 0 to ``nbytes`` along ``width``; ``rise`` draws faint lines so far up through a chart."""
        self.line(x, y, x + width, y, SOFT)
        for tick, label in ticks(nbytes, width):
            at = x + width * tick / nbytes
            if rise and 0 < tick < nbytes:
                self.line(at, y - rise, at, y, FAINT, 0.6)
            self.line(at, y, at, y + 4, SOFT)
            anchor = "start" if tick == 0 else "end" if tick == nbytes else "middle"
            self.text(at, y + 14, label, size=9.5, colour=SOFT, anchor=anchor)

    def render(self, title: str) -> str:
        """The whole document."""
        height = round(self.height + 24)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{height}" '
            f'viewBox="0 0 {self.width} {height}" role="img"><title>{_escaped(title)}</title>'
            f"<style>.m{{font-family:{MONO}}}.s{{font-family:{SANS}}}</style><defs>{_PADDING}</defs>"
            f'<rect width="{self.width}" height="{height}" fill="#ffffff"/>'
        )
        return "\n".join([head, *self._parts, "</svg>"]) + "\n"


def mono_width(text: str, size: float) -> float:
    """Pixels that ``text`` takes in the equal-width font."""
    return len(text) * size * 0.603


def cut_to(text: str, width: float, size: float) -> str:
    """``text``, cut to ``width`` pixels of the equal-width font."""
    return cut_text(text, int(width / mono_width(" ", size)))


def cut_text(text: str, room: int) -> str:
    """``text``, cut to ``room`` characters."""
    return text if len(text) <= room else text[: max(1, room - 1)] + "…"


def ticks(nbytes: int, width: float) -> list[tuple[int, str]]:
    """Where an axis is labelled: multiples of a power of two, and its end."""
    end = format_nbytes(nbytes)
    step = 1
    while step * width / nbytes < 84:
        step *= 2
    room = mono_width(end, 9.5) + 40
    inner = [tick for tick in range(0, nbytes, step) if tick == 0 or (nbytes - tick) * width / nbytes > room]
    return [*((tick, format_nbytes(tick)) for tick in inner if width > room or tick == 0), (nbytes, end)]


def shade(colour: str, amount: float) -> str:
    """``colour`` mixed with white."""
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * amount):02x}" for part in parts)


def ink_on(colour: str) -> str:
    """The text colour that can be read on ``colour``."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 150 else INK


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """A colour for every name; beyond the palette, hues a golden angle apart."""
    return {name: PALETTE[at] if at < len(PALETTE) else _hue(at) for at, name in enumerate(dict.fromkeys(names))}


def _hue(number: int) -> str:
    """A colour of middle lightness, 137.5 degrees (the golden angle) from its neighbours."""
    red, green, blue = hls_to_rgb(number * 137.508 % 360 / 360, 0.5, 0.5)
    return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))


def _escaped(text: str) -> str:
    """Text as XML, which has no control characters: those are written as Python writes them."""
    return escape("".join(one if one.isprintable() else ascii(one)[1:-1] for one in text))
