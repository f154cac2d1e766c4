"""The command line: what is installed, what a plan is and why, and how fast blocks move.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 refused or
failed, 2 wrong usage, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

from cachecore.cli.backends import add_command as add_backends
from cachecore.cli.bench import add_command as add_bench
from cachecore.cli.explain import add_command as add_explain
from cachecore.cli.new_backend import add_command as add_new_backend
from cachecore.cli.options import in_options
from cachecore.cli.plan import add_command as add_plan
from cachecore.cli.terminal import json_alone, naming, prepare_streams, version_line
from cachecore.errors import CacheCoreError
from cachecore.testing.command import add_parser as add_check
from cachecore.testing.command import run as run_check

__all__ = ["main"]

_EPILOG = """\
examples:
  cachecore backends                        what is installed, and which backend serves which device
  cachecore plan --layers 32 --kv-heads 8 --head-dim 128 --device cuda --memory 20GiB -o plan.json
  cachecore explain plan.json --picture layout.svg
  cachecore bench copy --device cpu
  cachecore check cpu --report report.json
  cachecore new-backend mine --device-type npu

`cachecore COMMAND --help` says more. Every command takes --json.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    prepare_streams()
    try:
        code = _run(_parser(), argv)
        with naming("standard output"):
            sys.stdout.flush()
    except CacheCoreError as error:
        return _fail(str(error))
    except BrokenPipeError:
        _drop_unwritten()
        return 141
    except OSError as error:
        _drop_unwritten()
        return _fail(f"{error.filename}: {error.strerror or error}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("cachecore: interrupted", file=sys.stderr)
        return 130
    return code


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    try:
        options = parser.parse_args(argv)
    except SystemExit:  # after --help, --version or wrong usage
        with naming("standard output"):
            sys.stdout.flush()  # what cannot be written is an error for these too
        raise
    if options.run is None:
        parser.print_help(sys.stderr)
        return 2
    asks_json = getattr(options, "json", False) and options.run is not run_check  # which sees to its own report
    with json_alone() if asks_json else nullcontext():
        code: int = options.run(options)
    return code


class _Parser(argparse.ArgumentParser):
    """One whose errors are two lines, and whose help can fail to be written, where argparse says nothing."""

    def error(self, message: str) -> NoReturn:
        """Refuse: what must be given, what was wrong, where the rest is told."""
        needed = [_placeholder(one) for one in self._actions if one.required or one.nargs == argparse.PARSER]
        usage = " ".join(["usage:", self.prog, *needed, "[options]"])
        self.exit(2, f"{usage}; see `{self.prog} --help`\n{self.prog}: error: {in_options(message)}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            with naming("standard output"):
                file.write(message)
        else:
            super()._print_message(message, file)


def _placeholder(action: argparse.Action) -> str:
    named = action.metavar if isinstance(action.metavar, str) else None
    value = named or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return f"{action.option_strings[0]} {value}" if action.option_strings else value


def _parser() -> argparse.ArgumentParser:
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = _Parser(
        prog="cachecore",
        description="Plan, explain and measure the KV caches of an LLM inference engine.",
        epilog=_EPILOG,
        **style,
    )
    parser.add_argument("--version", action="version", version=version_line())
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_command in (add_backends, add_plan, add_explain, add_bench, add_check, add_new_backend):
        add_command(commands, style)
    return parser


def _drop_unwritten() -> None:
    """Without this, Python tries again to write what is buffered, and complains while it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    with suppress(OSError):  # the exit code still says it
        print(f"cachecore: error: {in_options(' '.join(message.split()))}", file=sys.stderr)
    return 1
