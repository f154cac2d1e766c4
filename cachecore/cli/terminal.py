"""What the commands read and print: plans, files, tables, JSON, progress."""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import importlib_metadata

from cachecore.backend import API_VERSION
from cachecore.errors import CacheCoreError
from cachecore.plan_set import CachePlanSet

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


def read_plan(path: str) -> CachePlanSet:
    """Read a saved plan; ``-`` is standard input."""
    if path == "-":
        if sys.stdin is None:  # as Python has it when its parent closed standard input
            raise CommandError("standard input is closed; name a file, or send the plan to standard input")
        with naming("standard input"):
            text = sys.stdin.buffer.read()
        return _loaded(text, "standard input")
    with naming(path):
        text = Path(path).read_bytes()
    return _loaded(text, path)


def _loaded(text: bytes, where: str) -> CachePlanSet:
    try:
        return CachePlanSet.loads(text)
    except CacheCoreError as error:
        raise CommandError(f"{where}: {error}") from error


def write_text(path: str, text: str) -> None:
    """Write a file; an error names it, also one that comes when it is closed."""
    with naming(path):
        Path(path).write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Give an error of reading or writing its file's name, which Python knows only where it is opened."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = name
        raise


def show(text: str, *, end: str = "\n") -> None:
    """Print a result."""
    with naming("standard output"):
        print(text, end=end, flush=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON document, with escapes only where standard output cannot say a character."""
    stream = sys.stdout.results if isinstance(sys.stdout, _Aside) else sys.stdout
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(data, indent=2)
    with naming("standard output"):
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


def note(message: str) -> None:
    """Say what was done beside the result."""
    print(f"cachecore: {message}", file=sys.stderr)


def warn(message: str) -> None:
    """Say something that matters whoever reads the output."""
    print(f"cachecore: warning: {message}", file=sys.stderr)
