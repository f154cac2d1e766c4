"""Copies in a forked child: ``python forked_copy.py BACKEND`` prints what parent and child have seen, as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
from cachecore_cpu import CpuBackend
from cachecore_cpu.plugin import cachecore_register_block_copies
from cachecore_torch_default import TorchBackend
from cachecore_torch_default.plugin import cachecore_register_block_copies as generic_copies

from cachecore import (
    BlockCacheGeometry,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    StandardLayoutPolicy,
    plan_from_specs,
)

NBYTES = 4 << 20
"""Of a block: torch shares a copy among its threads from 32,768 elements on."""
CHILD_S = 20

BACKENDS = {
    "cpu": (CpuBackend, (*cachecore_register_block_copies(), *generic_copies())),
    "torch-default": (TorchBackend, generic_copies()),
}


def first_bytes(engine: CacheEngine[torch.Tensor]) -> list[int]:
    row = engine.block_caches.layer("index", 1)
    return row.view(len(row), -1)[:, 0].tolist()


def work(engine: CacheEngine[torch.Tensor]) -> dict[str, Any]:
    engine.copy_blocks({0: 2})
    engine.swap_out({1: 0}).synchronize()
    engine.zero_blocks([1])
    engine.swap_in({0: 3}).synchronize()
    return {"blocks": first_bytes(engine), "threads": torch.get_num_threads()}


if __name__ == "__main__":
    torch.set_num_threads(2)
    backend, copies = BACKENDS[sys.argv[1]]
    spec = CacheTensorSpec(name="index", shape=(NBYTES,), dtype="uint8", row_ids=(0, 1))
    plan = plan_from_specs([spec], BlockCacheGeometry(1), StandardLayoutPolicy())
    engine: CacheEngine[torch.Tensor] = CacheEngine(
        CachePlanSet((plan,), "cpu", "test"), 4, backend=backend(), copies=copies, device="cpu", host_counts=2
    )
    for block, number in enumerate((7, 8, 0, 0)):
        engine.block_caches.layer("index", 1)[block].fill_(number)
    engine.copy_blocks({0: 3})  # torch's threads are there
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(CHILD_S)  # a child that hangs ends by a signal
        os.write(tell, json.dumps(work(engine)).encode())
        os._exit(0)
    os.close(tell)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = json.loads(os.read(told, 4096) or b"null")
    print(json.dumps({"status": status, "child": seen, "untouched": first_bytes(engine), "parent": work(engine)}))
