"""Every way of copying and swapping on one GPU, in one process: bytes are checked first, then all are timed in turn.

Run on a machine with an NVIDIA GPU: ``python plugins/cuda-triton/benchmarks/gpu.py --out results.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from statistics import median

import torch
import triton
from cachecore_torch_default.bench import SCENARIOS
from gpu_common import DEVICE, RESULTS, in_turn
from gpu_copy import bench_copy
from gpu_swap import bench_swap


def limits() -> dict[str, float]:
    """Bytes read and written a second of a 4 GiB copy; bytes a second over the link, each way and both."""
    big = torch.empty(2, (1 << 32) + (1 << 20), dtype=torch.uint8, device=DEVICE)
    big.random_(0, 255)
    found = {}
    for name, nbytes in (("device", 1 << 32), ("device 1 GiB", 1 << 30), ("device 256 MiB", 1 << 28)):
        one, two = big[0, :nbytes], big[1, :nbytes]
        seconds = in_turn({name: lambda at, one=one, two=two: two.copy_(one)}, 3)[name]
        found[name] = 2 * nbytes / seconds / 1e9
    found["device 4 GiB"] = found["device"]
    found["device"] = max(found.values())
    from cachecore_cuda_triton.pinned import pinned_pages

    host = [pinned_pages(1 << 30, device=DEVICE) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def out():
        with torch.cuda.stream(streams[0]):
            host[0].copy_(big[0, : 1 << 30], non_blocking=True)

    def back():
        with torch.cuda.stream(streams[1]):
            big[1, : 1 << 30].copy_(host[1], non_blocking=True)

    for name, ways in (("d2h", (out,)), ("h2d", (back,)), ("duplex", (out, back))):
        samples = []
        for _ in range(6):
            torch.cuda.synchronize()
            started = time.perf_counter()
            for way in ways:
                way()
            torch.cuda.synchronize()
            samples.append(time.perf_counter() - started)
        found[name] = len(ways) * (1 << 30) / median(samples[1:]) / 1e9
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", help="write every figure as JSON")
    parser.add_argument("--compact", action="store_true", help="a pool no larger than the pairs need")
    parser.add_argument("--only", choices=("copy", "swap"))
    parser.add_argument("--pairs", type=lambda text: [int(one) for one in text.split(",")], default=[1, 8, 64, 256])
    parser.add_argument("--scenarios", type=lambda text: text.split(","), default=list(SCENARIOS)[:5])
    parser.add_argument(
        "--ways", type=lambda text: text.split(","), default=["auto"], help="auto, staged, pitched, direct"
    )
    parser.add_argument(
        "--layouts",
        type=lambda text: text.split(","),
        default=["rows", "one-run"],
        help="rows: a pool for each size of row; one-run: one pool, and a block is one run of it (one_run_per_block)",
    )
    options = parser.parse_args()
    found = limits()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__, found, flush=True)
    torch.cuda.empty_cache()
    for name, layout in product(options.scenarios, options.layouts):
        if options.only != "swap":
            bench_copy(name, options.pairs, found["device"], options.compact, layout)
        for way in options.ways if options.only != "copy" else ():
            if way == "auto" or layout == "rows":  # a block that is one run is not staged to compare
                bench_swap(name, found, "" if way == "auto" else way, layout)
    if options.out:
        with open(options.out, "w") as file:
            about = {
                "device": torch.cuda.get_device_name(),
                "date": time.strftime("%Y-%m-%d"),
                "torch": torch.__version__,
            }
            json.dump({**about, "limits": found, "results": RESULTS}, file, indent=1)


if __name__ == "__main__":
    main()
