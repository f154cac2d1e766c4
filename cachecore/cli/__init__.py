"""The command line: what is installed, what a plan is and why, and how fast blocks move.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 refused or
failed, 2 wrong usage, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from cachecore.cli.backends import add_command as add_backends
from cachecore.cli.bench import add_command as add_bench
from cachecore.cli.explain import add_command as add_explain
from cachecore.cli.new_backend import add_command as add_new_backend
from cachecore.cli.plan import add_command as add_plan
from cachecore.cli.terminal import prepare_streams, version_line
from cachecore.errors import CacheCoreError
from cachecore.testing.command import add_parser as add_check

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
    parser = _parser()
    options = parser.parse_args(argv)
    if options.run is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except CacheCoreError as error:
        return _fail(str(error))
    except BrokenPipeError:
        # What is still buffered has no reader either; without this, Python complains while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("cachecore: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    style: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(
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


def _fail(message: str) -> int:
    print(f"cachecore: error: {' '.join(message.split())}", file=sys.stderr)
    return 1
