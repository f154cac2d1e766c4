"""Engines in a process that was forked while torch had threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "forked_copy.py"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this operating system does not fork")
@pytest.mark.parametrize("backend", ["cpu", "torch-default"])
def test_a_forked_child_copies_in_one_thread_and_leaves_the_parent_alone(backend: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    done = subprocess.run(
        [sys.executable, str(SCRIPT), backend],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    # Block 0 (7) goes to 2; block 1 (8) to the host, is zeroed, and comes back as block 3.
    assert json.loads(done.stdout) == {
        "status": 0,
        "child": {"blocks": [7, 0, 7, 8], "threads": 1},
        "untouched": [7, 8, 0, 7],
        "parent": {"blocks": [7, 0, 7, 8], "threads": 2},
    }
