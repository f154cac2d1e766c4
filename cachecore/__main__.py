"""``python -m cachecore``."""

from __future__ import annotations

import sys


def run() -> int:
    """The command line, with Ctrl-C heard while it is imported too."""
    try:
        from cachecore.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("cachecore: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())
