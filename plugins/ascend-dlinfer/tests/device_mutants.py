"""Swaps that are right, and three that are not: ``python device_mutants.py NAME`` says what the host has got."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import cachecore_npu_sim
import torch
from cachecore_ascend_dlinfer import DlinferBackend
from cachecore_ascend_dlinfer.plugin import probe_swap
from cachecore_ascend_dlinfer.swap import MirrorSwap
from cachecore_torch_default import completion_of_stream, upload

from cachecore import (
    BlockCacheGeometry,
    BlockCopyInfo,
    BlockPairs,
    CacheEngine,
    CachePlanSet,
    Completion,
    CopyContext,
    KvCacheConfig,
)
from cachecore.kv import kv_specs
from cachecore.plan import plan_from_specs

STALL_US = 100_000


class Staged(MirrorSwap):
    """Gathers blocks into a temporary on the caller's stream, and stores that on the side stream."""

    records = True

    def __init__(self, context: CopyContext) -> None:
        super().__init__(context)
        self._pools = context.src.pools, context.dst.pools

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        side = self._backend.side_stream(self._device, "store")
        ids = upload(torch.frombuffer(pairs.src, dtype=torch.int64), self._device)
        for src, dst in zip(*self._pools, strict=True):
            taken = src.index_select(1, ids)
            side.wait_stream(torch.npu.current_stream(self._device))
            with torch.npu.stream(side):
                torch.ops.cachecore_npu_sim.stall(STALL_US)
                for at, block in enumerate(pairs.dst):
                    for row in range(len(dst)):
                        dst[row, block].copy_(taken[row, at], non_blocking=True)
            if self.records:
                taken.record_stream(side)
            nbytes = taken.nbytes
            del taken
            torch.zeros(nbytes, dtype=torch.uint8, device=self._device)  # what the next operator allocates
        return completion_of_stream(self._device, side)


class NoRecordStream(Staged):
    """The temporary is given away before the side stream has read it."""

    records = False


class NoWaitEvent(MirrorSwap):
    """The side stream does not wait for the caller's."""

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        stream = self._backend.side_stream(self._device, "store")
        with torch.npu.stream(stream):
            held = self._copies(self._runs.of(pairs))
        return completion_of_stream(self._device, stream, held=held)


class HostRead(MirrorSwap):
    """The host reads device addresses."""

    def __init__(self, context: CopyContext) -> None:
        super().__init__(context)
        self._pools = context.src.pools, context.dst.pools

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        for src, dst in zip(*self._pools, strict=True):
            ctypes.memmove(dst.data_ptr(), src.data_ptr(), 16)
        return super().__call__(pairs, after)


SWAPS = {"right": MirrorSwap, "staged": Staged, "no-wait": NoWaitEvent, "no-record": NoRecordStream, "read": HostRead}

if __name__ == "__main__":
    cachecore_npu_sim.install_native()
    backend, geometry = DlinferBackend(), BlockCacheGeometry(16)
    config = KvCacheConfig(layers=2, num_kv_heads=2, head_dim=8, dtype="float16")
    plan = plan_from_specs(kv_specs(config, geometry, backend.policy), geometry, backend.policy)
    copies = [BlockCopyInfo("tried", 100, probe_swap, SWAPS[sys.argv[1]])]
    plans = CachePlanSet((plan,), "npu", "test")
    engine = CacheEngine(plans, 4, backend=backend, copies=copies, device="npu", host_counts=4)
    torch.npu.synchronize()
    keys, values = engine.layer_caches[1]
    torch.ops.cachecore_npu_sim.stall(STALL_US)
    keys.fill_(1.5)
    values.fill_(2.5)
    engine.swap_out([(2, 3)]).synchronize()
    host = engine.allocation(host=True)
    found = [pool[1, 3].view(torch.float16) for pool in host.pools]
    print("right" if bool((found[0] == 1.5).all() and (found[1] == 2.5).all()) else "wrong")
