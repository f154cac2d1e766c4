"""Fresh processes: torch renames its spare device type once a process, and the native device has threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cachecore_npu_sim.native_build import built_library, compiler_reason

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def fresh() -> Run:
    """Run Python with these arguments and environment variables; ``first`` goes before everything on ``sys.path``."""
    paths = [path for path in sys.path if path]

    def run(*arguments: str, first: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        where = os.pathsep.join([first, *paths] if first else paths)
        environment = {**os.environ, "PYTHONPATH": where, "OMP_NUM_THREADS": "1", **variables}
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
            cwd=Path(__file__).parent,
        )

    return run


@pytest.fixture(scope="session")
def native() -> None:
    """Build the native device, or skip where that cannot be done."""
    if (reason := compiler_reason()) is not None:
        pytest.skip(reason)
    built_library()
