"""Swaps: each direction and both, alone and beside products of matrices that fill the device."""

from __future__ import annotations

import os
import random
import sys
import time
from statistics import median

import torch
from cachecore_torch_default.bench import SCENARIOS
from gpu_common import DEVICE, RESULTS, open_scenario, pages_of

from cachecore import BlockPairs

__all__ = ["bench_swap"]


def bench_swap(name: str, found: dict[str, float], forced: str, layout: str, num: int = 64) -> None:
    scenario = SCENARIOS[name]
    os.environ["CACHECORE_CUDA_SWAP"] = forced
    engine = open_scenario(name, 4 * num, 2 * num, layout)
    pools = engine.allocation().pools
    for pool in pools:
        pool.random_(0, 255)
    rng = random.Random(5)
    device = rng.sample(range(4 * num), 3 * num)
    host = rng.sample(range(2 * num), 2 * num)
    out = BlockPairs(device[:num], host[:num])
    back = BlockPairs(host[:num], device[num : 2 * num])
    pages = pages_of(engine)
    blocks = [pool.view(pool.shape[0], -1, pages * pool.shape[2]) for pool in pools]
    kept = [pool[:, device[:num]].clone() for pool in blocks]
    untouched = [pool[:, device[2 * num :]].clone() for pool in blocks]
    engine.swap_out(out).wait()
    for pool in blocks:
        pool[:, device[:num]] = 0x5A
    engine.swap_in(back).synchronize()
    for pool, want, same in zip(blocks, kept, untouched, strict=True):
        if not torch.equal(pool[:, device[num : 2 * num]], want) or not torch.equal(pool[:, device[2 * num :]], same):
            sys.exit(f"{name}: a swap moved a wrong byte")
    nbytes = num * scenario.block_nbytes
    other = BlockPairs(host[num:], device[2 * num :])

    def both():
        return engine.swap_in(other), engine.swap_out(out)

    matrix = torch.randn(2, 8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def matmuls(count: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(side):
            start.record()
            for _ in range(count):
                torch.mm(matrix[0], matrix[1])
            stop.record()
        return start, stop

    for way, call, limit, factor in (
        ("out", lambda: engine.swap_out(out), found["d2h"], 1),
        ("in", lambda: engine.swap_in(back), found["h2d"], 1),
        ("both", both, found["duplex"], 2),
    ):
        samples, submits = [], []
        for _ in range(9):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            submits.append(time.perf_counter() - started)
            torch.cuda.synchronize()
            samples.append(time.perf_counter() - started)
        seconds = median(samples[2:])
        # The same beside matrix products: how long do they take, and how long does the swap?
        count = max(4, int(seconds / 1.4e-3) + 4)
        torch.cuda.synchronize()
        alone, beside, beside_swap = [], [], []
        for _ in range(5):  # in turn, since the clock of a busy GPU drifts
            torch.cuda.synchronize()
            start, stop = matmuls(count)
            stop.synchronize()
            alone.append(start.elapsed_time(stop))
            torch.cuda.synchronize()
            start, stop = matmuls(count)
            started = time.perf_counter()
            work = call()
            for one in work if isinstance(work, tuple) else (work,):
                one.synchronize()
            beside_swap.append(time.perf_counter() - started)
            stop.synchronize()
            beside.append(start.elapsed_time(stop))
        group = engine.stats().groups[0]
        path = {copy.direction: copy.path for copy in group.copies if copy.direction != "copy"}
        rate, with_model = factor * nbytes / seconds / 1e9, factor * nbytes / median(beside_swap) / 1e9
        RESULTS.append(
            {
                "what": "swap", "scenario": name, "layout": layout, "num_pairs": num, "direction": way, "path": path,
                "nbytes": nbytes,
                "gb_per_s": rate, "limit_gb_per_s": limit, "ratio": rate / limit, "beside_gb_per_s": with_model,
                "ratio_beside": with_model / limit, "matmul_slowdown": median(beside) / median(alone),
                "submit_s": median(submits[2:]),
            }
        )  # fmt: skip
        print(
            f"swap {layout:8} {name:24} {way:4} {rate:6.1f} GB/s {rate / limit:5.3f}; "
            f"beside matmul {with_model / limit:5.3f}, matmul x{median(beside) / median(alone):5.3f}; "
            f"submit {median(submits[2:]) * 1e6:5.0f} us ({median(submits[2:]) / seconds:5.1%}) {path}",
            flush=True,
        )
    engine.close()
    torch.cuda.empty_cache()
