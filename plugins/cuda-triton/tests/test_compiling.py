"""The kernels compile for every architecture of today without a GPU, and move 16 bytes an access."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_every_kernel_compiles_and_moves_wide_words(capability: int, tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environ["TRITON_CACHE_DIR"] = str(tmp_path)

    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiling.py")), str(capability)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=environ,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(kernel["target"].startswith(f"sm_{capability}") for kernel in found.values())
    assert len(found) == 12
    # Two 8-byte words are one access of 16 bytes, in loads and in stores.
    for name in (one for one in found if one.startswith("copy")):
        wide = [access for access in found[name]["accesses"] if ".v2.b64" in access or ".v4.b32" in access]
        assert {access[:2] for access in wide} == {"ld", "st"}, found[name]
    assert any("cp.async.cg" in access for access in found["attend"]["accesses"]), found["attend"]
    # sm_86 and sm_89 have 99 KiB a block. Source: CUDA C++ Programming Guide, technical specifications table.
    assert all(kernel["shared_nbytes"] <= 99 << 10 for kernel in found.values())
