"""``python -m cachecore_npu_sim build`` compiles the C++ device for the torch that is installed."""

from __future__ import annotations

import argparse
import os
import sys

from cachecore_npu_sim import VARIABLE


def main() -> int:
    """Build, and say where the library is; 1 when it cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m cachecore_npu_sim", description=(__doc__ or "").strip())
    parser.add_argument("action", choices=["build"])
    parser.parse_args()
    os.environ.pop(VARIABLE, None)  # torch would look for the device while it is imported
    from cachecore_npu_sim.native_build import built_library

    try:
        sys.stdout.write(f"{built_library()}\n")
    except (RuntimeError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
