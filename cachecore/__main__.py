"""``python -m cachecore``."""

from __future__ import annotations

import sys

from cachecore.cli import main

if __name__ == "__main__":
    sys.exit(main())
