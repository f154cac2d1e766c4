"""The main job on a real model: SmolLM2 on cachecore blocks, every logit checked against plain transformers.

Run ``python examples/smollm2.py`` (or ``tox run -e demo``). Exit codes: 0 when every logit is bitwise
equal, 1 when one differs, 2 for wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cachecore import CacheCoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = _parse(arguments)
    started = time.perf_counter()
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # bars that redraw themselves fill a log; read when tqdm is imported
    try:
        # Here, not above: torch and transformers take seconds to import, and Ctrl-C must be heard meanwhile.
        from smollm2_demo.run import run_demo

        report = run_demo(options)
    except (CacheCoreError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    report["seconds"] = time.perf_counter() - started
    if options.json:
        print(json.dumps(report))
    return 0 if report["check"]["equal"] else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="smollm2.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, npu, ... (default: %(default)s)")
    parser.add_argument("--backend", help="force a backend by name, and its own copies (default: the best)")
    parser.add_argument("--block-size", type=_count, default=16, metavar="N", help="tokens a block (default: 16)")
    parser.add_argument("--kernel-block-size", type=_count, metavar="N", help="tokens a page (default: the block)")
    parser.add_argument("--tokens", type=_count, default=12, metavar="N", help="tokens decoded a stage (default: 12)")
    # One by default: threads that wait for each other on a busy machine made the run six times slower (2026-11-29).
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="CPU threads of torch (default: 1)")
    parser.add_argument(
        "--model",
        choices=("smollm2", "random", "tiny"),
        default="smollm2",
        help="random: SmolLM2's shape without its weights; tiny: a small one (default: smollm2)",
    )
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="for files (default: ./out)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document instead of text; run the script itself for it, since tox prints lines of its own",
    )
    parser.add_argument(
        "--inject-fault", action="store_true", help="change one value in one block halfway: the check must fail"
    )
    options = parser.parse_args(arguments)
    there = next(folder for folder in (options.out, *options.out.absolute().parents) if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        parser.error(f"--out {options.out}: {there} is no folder that can be written to")
    return options


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no positive number")
    return number


if __name__ == "__main__":
    sys.exit(main())
