"""Storage dtypes by name, as torch spells them; torch itself is never imported.

Sub-byte meaning is in a spec's ``format``; a storage dtype is always byte-addressable.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from cachecore.errors import PlanError

ITEMSIZE: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "int8": 1,
        "uint16": 2,
        "int16": 2,
        "uint32": 4,
        "int32": 4,
        "uint64": 8,
        "int64": 8,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
        "float8_e4m3fn": 1,
        "float8_e4m3fnuz": 1,
        "float8_e5m2": 1,
        "float8_e5m2fnuz": 1,
        "float8_e8m0fnu": 1,
        "float4_e2m1fn_x2": 1,
    }
)
"""Bytes per element of every storage dtype, keyed by torch's name."""

_SHORT = MappingProxyType(
    {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "fp32": "float32", "f32": "float32", "fp64": "float64"}
)
"""Spellings that torch does not have, and what is meant."""

_ALIASES = MappingProxyType({"half": "float16", "float": "float32", "double": "float64"})
_VAGUE = MappingProxyType(
    {
        "fp8": ("float8_e4m3fn", "float8_e5m2"),
        "float8": ("float8_e4m3fn", "float8_e5m2"),
        "fp4": ("float4_e2m1fn_x2",),
        "float4": ("float4_e2m1fn_x2",),
        "int4": ("uint8",),
        "uint4": ("uint8",),
    }
)


def dtype_name(dtype: object) -> str:
    """Return the storage name of ``dtype``: a string, a ``torch.dtype`` or a numpy dtype.

    >>> dtype_name("torch.bfloat16")
    'bfloat16'

    Raises
    ------
    PlanError
        When the name is unknown, or names no single storage dtype (``"fp8"``).
    """
    name = dtype if isinstance(dtype, str) else _spell(dtype)
    name = name.removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in ITEMSIZE:
        return name
    choices = _VAGUE.get(name)
    if choices is not None:
        raise PlanError(
            f"dtype {name!r} names no storage dtype; choose one of {', '.join(choices)} "
            "and say what the bytes mean in format=",
            dtype=name,
            choices=choices,
        )
    close = get_close_matches(name, ITEMSIZE, n=1)
    meant = _SHORT.get(name) or "".join(close)
    hint = f" (did you mean {meant}?)" if meant else ""
    raise PlanError(
        f"unknown storage dtype {name!r}{hint}; expected one of {', '.join(sorted(ITEMSIZE))}",
        dtype=name,
        choices=tuple(sorted(ITEMSIZE)),
    )


def itemsize(dtype: object) -> int:
    """Bytes per element of ``dtype``."""
    return ITEMSIZE[dtype_name(dtype)]


def _spell(dtype: object) -> str:
    if isinstance(dtype, type):  # numpy scalar types such as numpy.float16
        return dtype.__name__
    text = str(dtype)
    if dtype is None or isinstance(dtype, (int, float, bytes)) or " " in text:
        raise TypeError(f"dtype must be a dtype or its name, such as 'bfloat16', not {dtype!r}")
    return text
