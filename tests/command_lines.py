"""Command lines in this process and as ``python -m cachecore``."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from cachecore.cli import main


def run_json(capsys, *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def run_module(*argv: str, **options) -> subprocess.CompletedProcess[str]:
    """``python -m cachecore``, from another folder, so that only the path decides which cachecore it is."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, filter(None, sys.path)))),
    }
    return subprocess.run(
        [sys.executable, "-m", "cachecore", *argv],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )
