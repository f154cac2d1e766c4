"""Bytes as people write and read them: ``20GiB`` is 20 * 1024**3, ``20GB`` is 20 * 1000**3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from cachecore.errors import PlanError

__all__ = ["both_nbytes", "exact_nbytes", "format_nbytes", "parse_nbytes"]

_PREFIXES = "KMGTPE"
_UNITS: Mapping[str, int] = MappingProxyType(
    {"": 1, "b": 1}
    | {f"{prefix.lower()}ib": 1024**power for power, prefix in enumerate(_PREFIXES, 1)}
    | {f"{prefix.lower()}b": 1000**power for power, prefix in enumerate(_PREFIXES, 1)}
)
_QUANTITY = re.compile(r"(\d[\d_,]*(?:\.\d+)?)\s*([A-Za-z]*)")

_MOST_CHARACTERS = 64
"""Longer text is no size of a memory, and Python refuses to read thousands of digits."""


def parse_nbytes(text: str) -> int:
    """Read a number of bytes with an optional unit; a fraction of a byte is dropped.

    >>> parse_nbytes("1.5 KiB"), parse_nbytes("2GB"), parse_nbytes("4096")
    (1536, 2000000000, 4096)

    Raises
    ------
    PlanError
        For anything else, and for ``20G``, which does not say whether it counts in 1000 or 1024.
    """
    if not isinstance(text, str):
        raise TypeError(f"a number of bytes is read from text such as '20GiB', not {text!r}")
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or len(text) > _MOST_CHARACTERS:
        raise PlanError(
            f"{text[:_MOST_CHARACTERS]!r} is no number of bytes; expected one such as 20GiB, 512MiB or 4096", value=text
        )
    number, unit = match.groups()
    factor = _UNITS.get(unit.lower())
    if factor is None:
        prefix = unit[0].upper()
        if prefix in _PREFIXES and unit.lower() in (prefix.lower(), f"{prefix.lower()}i"):
            power = _PREFIXES.index(prefix) + 1
            raise PlanError(
                f"{text!r} has no clear unit; write {number}{prefix}iB (1024**{power} bytes) or "
                f"{number}{prefix}B (1000**{power} bytes)",
                value=text,
            )
        raise PlanError(
            f"{text!r} has unknown unit {unit!r}; expected B, KiB, MiB, GiB, TiB, KB, MB, GB or TB", value=text
        )
    return int(Fraction(number.replace("_", "").replace(",", "")) * factor)


def format_nbytes(nbytes: float, places: int = 2) -> str:
    """Write bytes with a binary unit and at most ``places`` decimals.

    >>> format_nbytes(24576), format_nbytes(1000), format_nbytes(1536 * 1024)
    ('24 KiB', '1000 B', '1.5 MiB')
    """
    if nbytes < 1024:
        return f"{_decimals(nbytes, places)} B"
    value, prefix = float(nbytes), ""
    for prefix in _PREFIXES:  # noqa: B007  # the unit the loop stops at is the answer
        value /= 1024
        if round(value, places) < 1024:
            break
    return f"{_decimals(value, places)} {prefix}iB"


def exact_nbytes(nbytes: int) -> str:
    """Write bytes with a unit where four decimals say them exactly, else every digit.

    >>> exact_nbytes(2949120), exact_nbytes(93424)
    ('2.8125 MiB', '93,424 B')
    """
    unit = 1024 ** max(0, (nbytes.bit_length() - 1) // 10)
    return format_nbytes(nbytes, 4) if nbytes * 10_000 % unit == 0 else f"{nbytes:,} B"


def both_nbytes(nbytes: float) -> str:
    """Write bytes with a unit, and exactly beside it where the unit hides a digit.

    >>> both_nbytes(10496), both_nbytes(767), both_nbytes(384.5)
    ('10.25 KiB (10,496 B)', '767 B', '384.5 B')
    """
    text = format_nbytes(nbytes)
    return text if nbytes < 1024 else f"{text} ({nbytes:,.0f} B)" if nbytes == int(nbytes) else text


def _decimals(value: float, places: int) -> str:
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
