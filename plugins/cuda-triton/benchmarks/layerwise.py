"""A model of equal layers after a swap-in, waiting for all of it or for each layer, in one process.

``python plugins/cuda-triton/benchmarks/layerwise.py --out layerwise.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from itertools import product
from statistics import median

import torch
from cachecore_cuda_triton.layerwise import layerwise_swap_in
from cachecore_torch_default.bench import SCENARIOS
from gpu_common import registry

from cachecore import BlockPairs, CacheEngine, LayoutHints, StandardLayoutPolicy

NUM_BLOCKS = 64
STEPS = (1, 2, 4, 8, 32)
"""Layers that arrive together; 0 stands for the whole swap."""


def engine_of(name: str, layers_per_step: int, one_run: bool) -> CacheEngine:
    found = registry()
    backend = found.select("cuda").chosen.info.load()
    plans = SCENARIOS[name].plans(StandardLayoutPolicy(), "cuda", backend.name, LayoutHints(one_run_per_block=one_run))
    extra = (layerwise_swap_in(plans, layers_per_step=layers_per_step),) if layers_per_step else ()
    return CacheEngine(
        plans, 256, backend=backend, copies=(*extra, *found.copy_infos()), device="cuda:0", host_counts=128
    )


def measure(name: str, layers_per_step: int, one_run: bool, num_layers: int, matrices: torch.Tensor) -> dict:
    rng = random.Random(3)
    device, host = rng.sample(range(256), 2 * NUM_BLOCKS), rng.sample(range(128), NUM_BLOCKS)
    with engine_of(name, layers_per_step, one_run) as engine:
        pools = [pool.random_(0, 256) for pool in engine.allocation().pools]
        kept = [pool[:, device[:NUM_BLOCKS]].clone() for pool in pools]
        engine.swap_out(BlockPairs(device[:NUM_BLOCKS], host)).synchronize()
        back = BlockPairs(host, device[NUM_BLOCKS:])
        samples, submits = [], []
        for _ in range(9):
            torch.cuda.synchronize()
            started = time.perf_counter()
            arrivals = engine.swap_in(back)
            submits.append(time.perf_counter() - started)
            if not layers_per_step:
                arrivals.wait()
            for layer in range(num_layers):
                if layers_per_step:
                    arrivals.layer(layer).wait()
                torch.mm(matrices[0], matrices[1], out=matrices[2])
            torch.cuda.synchronize()
            samples.append(time.perf_counter() - started)
        if not all(torch.equal(pool[:, device[NUM_BLOCKS:]], want) for pool, want in zip(pools, kept, strict=True)):
            raise SystemExit(f"{name}, {layers_per_step} layers a step: a wrong byte")
        path = engine.stats().groups[0].copies[2].path
    return {
        "scenario": name,
        "one_run": one_run,
        "layers_per_step": layers_per_step,
        "path": path,
        "ms": median(samples[2:]) * 1e3,
        "submit_us": median(submits[2:]) * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    options = parser.parse_args()
    matrices = torch.randn(3, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    results = []
    for name, num_layers in (("32x262144", 32), ("32x65536", 32)):
        samples = []
        for _ in range(5):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(num_layers):
                torch.mm(matrices[0], matrices[1], out=matrices[2])
            torch.cuda.synchronize()
            samples.append(time.perf_counter() - started)
        print(f"{name}: {num_layers} layers alone {median(samples) * 1e3:.2f} ms")
        for one_run, step in product((False, True), (0, *STEPS)):
            found = measure(name, step, one_run, num_layers, matrices)
            results.append(found)
            print(f"  {'one run a block' if one_run else 'rows':>15}, {step or 'all':>3} layers a step: "
                  f"{found['ms']:.2f} ms, submit {found['submit_us']:.0f} us, {found['path']}", flush=True)  # fmt: skip
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
