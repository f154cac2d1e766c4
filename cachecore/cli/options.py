"""Options that several commands have, how they are read, and how Python's words for them become the command line's."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn, TypeVar

from cachecore.device import DeviceSpec
from cachecore.dtypes import dtype_name
from cachecore.errors import CacheCoreError
from cachecore.kv import MOST_LAYERS
from cachecore.nbytes import parse_nbytes
from cachecore.plan_set import CachePlanSet
from cachecore.sizing import counts_for

T = TypeVar("T")

_MOST_DIGITS = 18
"""Digits of a 64-bit number; Python refuses to read thousands."""

_NAMED_ALIKE = (
    *("head_dim", "v_head_dim", "latent_dim", "rope_dim", "sparse_mla", "quant_policy", "tp_rank"),
    *("one_run_per_block", "base_alignment"),
)
_OPTIONS = MappingProxyType(
    {
        "logical_block_size": "--block-size",
        "kernel_block_size": "--kernel-block-size",
        "num_kv_heads": "--kv-heads",
        "tp_size": "--tp",
        "memory_nbytes": "--memory",
        "context_length": "--context-length",
        **{name: f"--{name.replace('_', '-')}" for name in _NAMED_ALIKE},
    }
)
"""What an argument of the Python API is called on the command line."""


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def device_name(text: str) -> str:
    """An option that names a device."""
    return str(_or_usage(DeviceSpec.parse, text))


def byte_count(text: str) -> int:
    """An option that is a number of bytes."""
    return _or_usage(parse_nbytes, text)


def _or_usage(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except CacheCoreError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def at_least(least: int) -> Callable[[str], int]:
    """An option that is a number, ``least`` or more."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small; expected {least} or more")
        return value

    return number


def model_dtype(text: str) -> str:
    """An option that names a dtype of torch's; eight bits are no model's dtype but a way to store K/V."""
    if text.startswith(("fp8", "float8", "int8", "int4", "fp4")):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no model's dtype (did you mean bfloat16?); quantised K/V is asked for with --quant-policy"
        )
    return _or_usage(dtype_name, text)


def unit_counts(text: str) -> int | dict[str, int]:
    """An option that is a number, or one for each group: ``1024`` or ``full=1024,sliding=64``."""
    try:
        if "=" not in text:
            return int(text)
        parts = [part.split("=", 1) for part in text.split(",")]
        counts = {name.strip(): int(number) for name, number in parts}
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no count; expected a number such as 1024, or one a group such as full=1024,sliding=64"
        ) from error
    if len(counts) != len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} names a group twice")
    return counts


def counts_of(plans: CachePlanSet, asked: int | Mapping[str, int] | None) -> dict[str, int] | None:
    """The counts of every group as ``--blocks`` gave them."""
    return None if asked is None else counts_for(plans, asked, "--blocks")


def layer_count(text: str) -> list[int]:
    """An option that is a count of layers, or their ids."""
    if not text.isdecimal():
        return layer_ids(text)
    count = _number(text)
    if not 0 < count <= MOST_LAYERS:
        raise argparse.ArgumentTypeError(f"{text} layers; expected 1 to {MOST_LAYERS:,}")
    return list(range(count))


def layer_ids(text: str) -> list[int]:
    """An option that lists ids such as ``0-4,6``."""
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r} lists no layers; expected ids such as 0-4,6 or a count")
        start, end = _number(first), _number(last if dash else first)
        if end < start:
            raise argparse.ArgumentTypeError(
                f"{text!r} lists no layers from {start} to {end}; expected ids such as 0-4"
            )
        if end - start + len(ids) >= MOST_LAYERS:
            raise argparse.ArgumentTypeError(f"{text!r} lists more than {MOST_LAYERS:,} layers")
        ids += range(start, end + 1)
    return ids


def _number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"a layer id of {len(digits)} digits is a mistake")
    return int(digits)


def usage_error(options: argparse.Namespace, message: str) -> NoReturn:
    """Refuse options that do not go together, as argparse refuses one."""
    parser: argparse.ArgumentParser = options.parser
    parser.error(message)


def in_options(message: str) -> str:
    """An error's words with the command line's options for Python's arguments.

    >>> in_options("head_dim is missing; say which with backend='cuda-triton'")
    '--head-dim is missing; say which with --backend cuda-triton'
    """
    message = re.sub(r"\bbackend='([^']*)'", r"--backend \1", message)
    return re.sub(rf"(?<![\w'-])({'|'.join(_OPTIONS)})\b(?!=)", lambda found: _OPTIONS[found[1]], message)
