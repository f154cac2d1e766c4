"""``cachecore check``: the conformance kit as a command, with a report to send back from real hardware.

Exit codes: 0 when nothing failed, 1 when something did, 2 when what was asked could not be checked: wrong
usage, no such backend, or no device here for levels that need one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

from cachecore.errors import CacheCoreError
from cachecore.registry import PluginRegistry
from cachecore.testing.checks import DEVICE_LEVELS, LEVELS
from cachecore.testing.results import FAIL, PASS, SKIP, Outcome, level_status, report, text
from cachecore.testing.running import LIMIT_S, run_checks, select_trials
from cachecore.testing.subject import Subject, find_subject
from cachecore.testing.ways import unserved

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Put every contract of a backend to an installed plugin: layouts, views, copies, swaps, stream order, errors,
leaks. Levels are reported apart, each with pass, fail, or skipped with its reason.
"""

_EPILOG = """\
examples:
  cachecore check cpu                                  everything, on the device that the backend names first
  cachecore check ascend --device npu:0 --report ascend.json
  cachecore check mine --level layout --level golden   what can be checked without the device
  cachecore check mine --level copy                    one level, while it is being written
  cachecore check cpu --copies their-copy              block copies of a plugin that is no backend
  cachecore check --list                               levels and checks

A new plugin starts with `cachecore new-backend`.
exit codes: 0 nothing failed, 1 something failed, 2 what was asked could not be checked
"""


def add_parser(subparsers: Any, style: dict[str, Any] | None = None) -> None:
    """Add ``check`` to a command line."""
    parser = subparsers.add_parser(
        "check",
        help="check a backend against every contract",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        **(style or {"formatter_class": argparse.RawDescriptionHelpFormatter}),
    )
    parser.add_argument("backend", nargs="?", metavar="BACKEND", help="an installed backend: name or name@distribution")
    parser.add_argument("--device", metavar="DEVICE", help="where to check (default: the first that the backend names)")
    parser.add_argument(
        "--level",
        action="append",
        choices=tuple(LEVELS),
        metavar="LEVEL",
        help=f"check this one only; may be given several times: {', '.join(LEVELS)}",
    )
    parser.add_argument(
        "--copies", metavar="DISTRIBUTION", help="check the block copies of this distribution with it, before its own"
    )
    parser.add_argument("--report", metavar="FILE", help="also write the report, as JSON, to FILE")
    parser.add_argument(
        "--limit", type=_seconds, default=LIMIT_S, metavar="SECONDS", help=f"for one check (default: {LIMIT_S:g})"
    )
    parser.add_argument("--verbose", action="store_true", help="also print what passed checks have to say")
    parser.add_argument("--list", action="store_true", help="print levels and checks, and check nothing")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Check, print, write the report, and say with the exit code what came of it."""
    levels: Sequence[str] = args.level or ()
    if args.list:
        _print(_listing(levels, as_json=args.json))
        return 0
    if args.backend is None:
        args.parser.error("name a BACKEND; `cachecore backends` shows which are installed")
    if args.report is not None and (reason := _unwritable(args.report)):
        args.parser.error(f"--report {args.report}: {reason}, nothing was checked")
    started = time.perf_counter()
    with redirect_stdout(sys.stderr):  # what a plugin prints is no part of the report
        registry = PluginRegistry()
        registry.load_entry_points()
        try:
            subject = find_subject(registry, args.backend, args.device, copies=args.copies)
        except CacheCoreError as error:
            sys.stderr.write(f"cachecore: error: {error}\n")
            return 2
        outcomes = run_checks(subject, levels=levels, limit_s=args.limit, progress=_Progress(levels))
        data = report(subject, outcomes, time.perf_counter() - started)
    _print([json.dumps(data, indent=2, ensure_ascii=False)] if args.json else text(data, verbose=args.verbose))
    if args.report is not None:
        try:
            Path(args.report).write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        except OSError as error:
            _say(f"cachecore: error: the report was not written to {args.report}: {error.strerror}; it stands above")
            return 2
        _say(f"cachecore: wrote the report, {args.report}")
    return _exit_code(subject, outcomes, args.copies)


def _say(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{line}\n")


def _seconds(text: str) -> float:
    """A limit that a thread can be waited for."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def _unwritable(name: str) -> str | None:
    """Why no report can be written there, before checks that take minutes on a device."""
    file = Path(name)
    if not file.absolute().parent.is_dir():
        return "its folder is not there; make it first"
    if not name or file.is_dir():
        return "a folder, no file; name a file"
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        return "it may not be written; name another file"
    return None


def _exit_code(subject: Subject, outcomes: Sequence[Outcome], copies: str | None) -> int:
    if level_status(outcomes) == FAIL:
        return 1
    on_device = [one for one in outcomes if one.level in DEVICE_LEVELS]
    if subject.unavailable is not None and on_device and not any(one.status == PASS for one in on_device):
        absence = subject.absence()
        missed = sum((one.status, one.told) == (SKIP, absence) for one in outcomes)
        sys.stderr.write(
            f"cachecore: error: {subject.info.name} does not serve {subject.device} here ({subject.unavailable}), so "
            f"{missed} checks were not made; run them where the device "
            "is, or name the levels that need none: --level discovery --level layout --level golden\n"
        )
        return 2
    wrong = unserved(copies, subject.ways.movers, f"{subject.info.name} on {subject.device}")
    if wrong is not None:
        sys.stderr.write(f"cachecore: error: {wrong}\n")
        return 2
    return 0


class _Progress:
    """Says on standard error what is being checked: a line a level, or a changing one on a terminal."""

    def __init__(self, levels: Sequence[str]) -> None:
        self._total = len(select_trials(levels))
        self._done = 0
        self._level = ""

    def __call__(self, name: str) -> None:
        """One more check begins."""
        self._done += 1
        level, before = name.partition("/")[0], self._level
        self._level = level
        with suppress(OSError):  # what nobody can read is no result of a check
            if sys.stderr.isatty():
                end = "\n" if self._done == self._total else ""
                sys.stderr.write(f"\r\x1b[K{self._done}/{self._total} {name[:90]}{end}")
            elif level != before:
                sys.stderr.write(f"cachecore: checking {level}\n")
            sys.stderr.flush()


def _listing(levels: Sequence[str], *, as_json: bool) -> list[str]:
    shown: dict[str, dict[str, str]] = {}
    for trial in select_trials(levels):
        shown.setdefault(trial.check.level, {})[trial.check.name] = trial.check.title
    if as_json:
        data = [{"level": level, "about": LEVELS[level], "checks": checks} for level, checks in shown.items()]
        return [json.dumps(data, indent=2)]
    lines = []
    for level, checks in shown.items():
        needs = "" if level in DEVICE_LEVELS else " (needs no device)"
        lines.append(f"{level}: {LEVELS[level]}{needs}")
        lines += [f"  {name:<34} {title}" for name, title in checks.items()]
    return lines


def _print(lines: Sequence[str]) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
