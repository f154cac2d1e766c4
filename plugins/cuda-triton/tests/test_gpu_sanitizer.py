"""The kernels under NVIDIA's compute-sanitizer, where the machine has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
HERE = Path(__file__).parent


@pytest.mark.skipif(SANITIZER is None, reason="this machine has no compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_no_kernel_reads_or_writes_what_it_must_not(gpu: object, tool: str) -> None:
    assert SANITIZER is not None
    # Without torch's caching allocator a byte beyond a tensor is a byte of nobody's.
    environ = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [SANITIZER, "--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
    # Attention alone has memory that its threads share, and so something to race for.
    kernels = [str(HERE / name) for name in ("test_launch.py", "test_decode_store.py", "test_attention.py")]

    done = subprocess.run(
        [*command, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kernels],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE,
        env=environ,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert ("ERROR SUMMARY: 0 errors" if tool == "memcheck" else "RACECHECK SUMMARY: 0 hazards") in done.stdout
