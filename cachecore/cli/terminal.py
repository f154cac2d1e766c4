"""What the commands share: options that read devices and sizes, tables, JSON, progress."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from types import FrameType
from typing import Any, NoReturn, TypeVar

import importlib_metadata

from cachecore.backend import API_VERSION
from cachecore.device import DeviceSpec
from cachecore.errors import CacheCoreError
from cachecore.nbytes import parse_nbytes
from cachecore.plan_set import CachePlanSet
from cachecore.sizing import counts_for

T = TypeVar("T")

DISTRIBUTION = "cachecore-kv"


class CommandError(CacheCoreError):
    """A command that cannot be carried out with what it was given."""


def core_version() -> str:
    """The version of the installed core, or that it runs from a source tree."""
    try:
        return importlib_metadata.version(DISTRIBUTION)
    except importlib_metadata.PackageNotFoundError:
        return "from a source tree, not installed"


def version_line() -> str:
    """What ``--version`` prints."""
    return f"cachecore {core_version()} ({DISTRIBUTION}, plugin API {API_VERSION}, Python {platform.python_version()})"


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


def read_plan(path: str) -> CachePlanSet:
    """Read a saved plan; ``-`` is standard input."""
    if path == "-":
        if sys.stdin is None:  # as Python has it when its parent closed standard input
            raise CommandError("standard input is closed; name a file, or send the plan to standard input")
        return _loaded(sys.stdin.buffer.read(), "standard input")
    with open(path, "rb") as file:
        return _loaded(file.read(), path)


def _loaded(text: bytes, where: str) -> CachePlanSet:
    try:
        return CachePlanSet.loads(text)
    except CacheCoreError as error:
        raise CommandError(f"{where}: {error}") from error


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON document, with escapes only where standard output cannot say a character."""
    stream = sys.stdout.results if isinstance(sys.stdout, _Aside) else sys.stdout
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(data, indent=2)
    print(text, file=stream)


class _Aside(io.TextIOBase):
    """Standard output while :func:`print_json` alone may write to it; what plugins print goes to standard error."""

    def __init__(self, results: Any) -> None:
        self.results = results

    def write(self, text: str) -> int:
        """To standard error."""
        return sys.stderr.write(text)


@contextmanager
def json_alone() -> Iterator[None]:
    """Keep what plugins print out of the JSON on standard output."""
    with redirect_stdout(_Aside(sys.stdout)):
        yield


def prepare_streams() -> None:
    """Give closed streams a void, and let a character that the terminal's encoding lacks be escaped.

    Python has None for a stream that its parent closed, and raises for a drawing on an ASCII terminal.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open until Python exits
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def interrupts_heard() -> Iterator[None]:
    """Raise at the end what Ctrl-C meant in between: the imports of C extensions may swallow KeyboardInterrupt."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if heard:
        raise KeyboardInterrupt


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, indent: int = 2, right: str = "") -> list[str]:
    """Lines of aligned columns; ``right`` lists the column numbers (one digit each) to align right."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return [
        " " * indent
        + "  ".join(
            f"{cell:>{width}}" if str(column) in right else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def width_of_terminal() -> int:
    """Columns to write; 100 where standard output is no terminal."""
    return max(60, shutil.get_terminal_size((100, 24)).columns) if sys.stdout.isatty() else 100


def progress(message: str) -> None:
    """Say what takes a while, where somebody is looking."""
    if sys.stderr.isatty():
        print(f"cachecore: {message}", file=sys.stderr, flush=True)


def warn(message: str) -> None:
    """Say something that matters whoever reads the output."""
    print(f"cachecore: warning: {message}", file=sys.stderr)


def usage_error(options: argparse.Namespace, message: str) -> NoReturn:
    """Refuse options that do not go together, as argparse refuses one."""
    parser: argparse.ArgumentParser = options.parser
    parser.error(message)
