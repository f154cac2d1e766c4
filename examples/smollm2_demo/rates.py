"""Bytes per second of each kind of copy, measured once the run is over."""

from __future__ import annotations

import random
import statistics
import time
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
            seconds = _median_seconds(move, BlockPairs(src, dst), stats.group, device)
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
                }
            )
    return rows


def _median_seconds(move: Any, pairs: BlockPairs, group: str, device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS + 1):
        wait_for(device)
        started = time.perf_counter()
        move(pairs, group=group).synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
