"""Bytes per second of each kind of copy and of one plain copy beside it, measured once the run is over."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from cachecore_transformers import CachePool

from cachecore import BlockPairs
from smollm2_demo.pair import wait_for

__all__ = ["measure_rates"]

NUM_PAIRS = 64
REPEATS = 5


def measure_rates(pool: CachePool) -> list[dict[str, Any]]:
    """For every group and kind: what the run moved, and the rate at which 64 random blocks move (median of 5)."""
    engine = pool.engine
    rows = []
    for stats in engine.stats().groups:
        device = pool.groups[stats.group].device
        ids = random.Random(3).sample(range(stats.num_blocks), stats.num_blocks)
        host = random.Random(4).sample(range(stats.num_host_blocks), stats.num_host_blocks)
        count = min(NUM_PAIRS, len(ids) // 2, len(host))
        kinds = {
            "copy": (engine.copy_blocks, ids[:count], ids[count : 2 * count]),
            "swap_out": (engine.swap_out, ids[:count], host[:count]),
            "swap_in": (engine.swap_in, host[:count], ids[:count]),
        }
        for copy in stats.copies:
            move, src, dst = kinds[copy.direction]
            pairs = BlockPairs(src, dst)
            seconds = _median_seconds(partial(_moved, move, pairs, stats.group), device)
            plain = _contiguous(copy.direction, count * copy.block_nbytes, device, stats.host_memory_kind)
            rows.append(
                {
                    "kind": copy.direction,
                    "group": stats.group,
                    "path": copy.path,
                    "record": copy.record,
                    "fallback": copy.fallback,
                    "num_blocks": copy.num_blocks,
                    "nbytes": copy.nbytes,
                    "block_nbytes": copy.block_nbytes,
                    "measured_blocks": count,
                    "bytes_per_s": count * copy.block_nbytes / seconds,
                    "contiguous_bytes_per_s": count * copy.block_nbytes / _median_seconds(plain, device),
                }
            )
    return rows


def _moved(move: Any, pairs: BlockPairs, group: str) -> None:
    move(pairs, group=group).synchronize()


def _contiguous(direction: str, nbytes: int, device: torch.device, host_memory: str | None) -> Callable[[], object]:
    """One plain copy of as many bytes the same way, with page-locked memory where the swaps have it."""
    there = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    if direction == "copy":
        return partial(torch.zeros_like(there).copy_, there)
    host = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=host_memory == "host:pinned")
    dst, src = (host, there) if direction == "swap_out" else (there, host)
    return partial(dst.copy_, src, non_blocking=True)


def _median_seconds(call: Callable[[], object], device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS + 1):
        wait_for(device)
        started = time.perf_counter()
        call()
        wait_for(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
