"""Fresh processes: torch renames its spare device type once a process, and the native device has threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cachecore_npu_sim.native_build import compiler_reason

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def fresh() -> Run:
    """Run Python with these arguments and environment variables."""
    paths = os.pathsep.join(path for path in sys.path if path)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": paths, **variables}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            cwd=Path(__file__).parent,
        )

    return run


@pytest.fixture(scope="session")
def compiler() -> None:
    """Skip where the native device cannot be compiled."""
    if (reason := compiler_reason()) is not None:
        pytest.skip(reason)
