"""Every way of copying and swapping on one GPU, in one process: bytes are checked first, then all are timed in turn.

Run on a machine with an NVIDIA GPU: ``python plugins/cuda-triton/benchmarks/gpu.py --out results.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from itertools import product
from statistics import median

import torch
import triton
import triton.language as tl
from cachecore_cuda_triton import plugin as cuda_plugin
from cachecore_torch_default import plugin as torch_plugin
from cachecore_torch_default.bench import SCENARIOS
from cachecore_torch_default.block_copy import GatherScatterCopy

from cachecore import BlockPairs, CacheEngine, LayoutHints, PluginRegistry, StandardLayoutPolicy
from cachecore.ranking import PluginRecord

DEVICE = torch.device("cuda", 0)
RESULTS: list[dict] = []


@triton.jit
def bytewise(pool, ids, num_pairs, outer_stride, block_nbytes: tl.constexpr, tile_nbytes: tl.constexpr):
    """One launch a pool, a byte a lane: what engines do today."""
    tile = tl.program_id(0).to(tl.int64)
    outer = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(2)
    src = tl.load(ids + pair)
    dst = tl.load(ids + num_pairs + pair)
    lane = tile * tile_nbytes + tl.arange(0, tile_nbytes)
    mask = lane < block_nbytes
    base = pool + outer * outer_stride
    tl.store(base + dst * block_nbytes + lane, tl.load(base + src * block_nbytes + lane, mask=mask), mask=mask)


def registry() -> PluginRegistry:
    found = PluginRegistry(environ={})
    found.register(torch_plugin, PluginRecord("torch-default", "cachecore-torch-default", "source"))
    found.register(cuda_plugin, PluginRecord("cuda-triton", "cachecore-cuda-triton", "source"))
    return found


def open_scenario(name: str, num_blocks: int, num_host: int, layout: str) -> CacheEngine:
    found = registry()
    backend = found.select("cuda").chosen.info.load()
    hints = LayoutHints(one_run_per_block=layout == "one-run")
    plans = SCENARIOS[name].plans(StandardLayoutPolicy(), "cuda", backend.name, hints)
    return CacheEngine(
        plans, num_blocks, backend=backend, copies=found.copy_infos(), device="cuda:0", host_counts=num_host
    )


def pairs_of(num_pairs: int, num_blocks: int, neighbours: int, seed: int) -> BlockPairs:
    rng = random.Random(seed)
    runs = rng.sample(range(num_blocks // neighbours), 2 * -(-num_pairs // neighbours))
    half = len(runs) // 2
    ids = [[run * neighbours + at for run in part for at in range(neighbours)] for part in (runs[:half], runs[half:])]
    return BlockPairs(ids[0][:num_pairs], ids[1][:num_pairs])


def graph_of(call, repeats: int) -> torch.cuda.CUDAGraph:
    """``repeats`` calls, each over other blocks, captured."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for at in range(repeats):
            call(at)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for at in range(repeats):
            call(at)
    return graph


def in_turn(calls: dict, repeats: int, rounds: int = 11) -> dict[str, float]:
    """Median seconds of one call of each, replayed as graphs in turn: what drifts, drifts for all.

    Twice each, and the second is timed: a copy leaves up to a cache of bytes that are yet to be written.
    """
    graphs = {name: graph_of(call, repeats) for name, call in calls.items()}
    deadline = time.perf_counter() + 0.1  # a GPU that was idle needs a moment to reach its clocks
    while time.perf_counter() < deadline:
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            samples[name].append(start.elapsed_time(stop) / 1e3 / repeats)
    return {name: median(found) for name, found in samples.items()}


def submit_seconds(call, calls: int = 200) -> float:
    """Median CPU seconds to submit one call, the queue kept short."""
    samples = []
    for _ in range(calls // 10):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10):
            call()
        samples.append((time.perf_counter() - started) / 10)
    torch.cuda.synchronize()
    return median(samples)


def limits() -> dict[str, float]:
    """Bytes read and written a second of a 4 GiB copy; bytes a second over the link, each way and both."""
    big = torch.empty(2, (1 << 32) + (1 << 20), dtype=torch.uint8, device=DEVICE)
    big.random_(0, 255)
    found = {}
    for name, nbytes in (("device", 1 << 32), ("device 1 GiB", 1 << 30), ("device 256 MiB", 1 << 28)):
        one, two = big[0, :nbytes], big[1, :nbytes]
        seconds = in_turn({name: lambda at, one=one, two=two: two.copy_(one)}, 3)[name]
        found[name] = 2 * nbytes / seconds / 1e9
    found["device"] = max(found[name] for name in found)
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


def pages_of(engine: CacheEngine) -> int:
    """Entries that a block takes up in the device's pools."""
    plan = engine.plans.only()
    return plan.pages_per_unit // plan.layout.pages_per_entry


def dropped(nbytes: int, contiguous: float, limit: float) -> bool:
    """Whether torch's own copy is not at its best: it falls to 2.7 TB/s for some sizes above 512 MB."""
    return nbytes > 256 << 20 and contiguous < 0.9 * limit


def bench_copy(name: str, counts: list[int], limit: float, compact: bool, layout: str) -> None:
    scenario = SCENARIOS[name]
    num_blocks = 2 * max(counts) if compact else max(2 * max(counts), min(4096, (4 << 30) // scenario.block_nbytes))
    engine = open_scenario(name, num_blocks, 0, layout)
    allocation = engine.allocation()
    for pool in allocation.pools:
        pool.random_(0, 255)
    check_copy(engine, scenario, num_blocks)
    fallback = GatherScatterCopy(make_context(engine))
    for count in counts:
        moved = 2 * count * scenario.block_nbytes
        repeats = max(2, min(16, int((2 << 30) // moved) or 2))
        sets = [pairs_of(count, num_blocks, scenario.neighbours, seed) for seed in range(repeats)]
        ids = [torch.tensor([list(p.src), list(p.dst)], dtype=torch.int64, device=DEVICE) for p in sets]
        ways = {"fused": lambda at, ids=ids: engine.copy_blocks_on_device(ids[at])}
        ways["launch a pool, bytewise"] = lambda at, ids=ids: bytewise_pools(allocation, ids[at], pages_of(engine))
        ways["index_select + index_copy_"] = lambda at, ids=ids: fallback.on_device(ids[at])
        flat = torch.empty(2 * repeats, moved // 2, dtype=torch.uint8, device=DEVICE) if moved < 3 << 30 else None
        plain = {} if flat is None else {"contiguous": lambda at, flat=flat: flat[2 * at].copy_(flat[2 * at + 1])}
        seconds = in_turn(ways | plain, repeats)
        contiguous = moved / seconds["contiguous"] / 1e9 if plain else 0
        del flat, plain
        submit = submit_seconds(lambda ids=ids: engine.copy_blocks_on_device(ids[0]))
        submit_host = submit_seconds(lambda sets=sets: engine.copy_blocks(sets[0]))
        for way in ways:
            rate = moved / seconds[way] / 1e9
            bound = limit if dropped(moved // 2, contiguous, limit) else contiguous
            RESULTS.append(
                {
                    "what": "copy",
                    "scenario": name,
                    "layout": layout,
                    "num_pairs": count,
                    "path": way,
                    "nbytes": moved // 2,
                    "gb_per_s": rate,
                    "limit_gb_per_s": limit,
                    "contiguous_gb_per_s": contiguous,
                    "ratio": rate / bound,
                    "submit_s": submit if way == "fused" else None,
                    "submit_host_ids_s": submit_host if way == "fused" else None,
                }
            )
            print(
                f"copy {layout:8} {name:24} {count:4} {way:36} {rate:7.0f} GB/s  {rate / bound:5.3f} of {bound:5.0f}  "
                f"{submit * 1e6:5.1f}/{submit_host * 1e6:5.1f} us",
                flush=True,
            )
    engine.close()
    torch.cuda.empty_cache()


def make_context(engine: CacheEngine):
    from cachecore import CopyContext
    from cachecore.transfer import block_segments

    plan, allocation = engine.plans.only(), engine.allocation()
    pages = plan.pages_per_unit
    segments = block_segments(plan.layout, allocation.num_entries, plan.layout, allocation.num_entries, pages)
    num = allocation.num_entries // pages_of(engine)
    return CopyContext(engine.backend, allocation, engine.backend, allocation, num, num, segments)


def bytewise_pools(allocation, ids, pages):
    for spec, pool in zip(allocation.layout.pools, allocation.pools, strict=True):
        block = spec.inner * pages
        tile = min(4096, triton.next_power_of_2(block))
        bytewise[(triton.cdiv(block, tile), spec.outer, ids.shape[1])](
            pool,
            ids,
            ids.shape[1],
            allocation.num_entries * spec.inner,
            block,
            tile,
            num_warps=8 if tile >= 2048 else 4,
        )


def check_copy(engine, scenario, num_blocks: int) -> None:
    """Every byte of every pool, for ids from the host and from the device."""
    pages = pages_of(engine)
    pools = engine.allocation().pools
    num = min(64, num_blocks // 2)
    for way in ("host", "device"):
        pairs = pairs_of(num, num_blocks, 1, 99)
        expected = []
        for pool in pools[:1] if sum(p.numel() for p in pools) > 8 << 30 else pools:
            want = pool.clone().view(pool.shape[0], -1, pages * pool.shape[2])
            want[:, list(pairs.dst)] = want[:, list(pairs.src)]
            expected.append(want)
        if way == "host":
            engine.copy_blocks(pairs)
        else:
            padded = torch.tensor([[*pairs.src, -1, 3], [*pairs.dst, 5, -1]], device=DEVICE)
            engine.copy_blocks_on_device(padded)
        for pool, want in zip(pools, expected, strict=False):
            if not torch.equal(pool.view(pool.shape[0], -1, pages * pool.shape[2]), want):
                sys.exit(f"{scenario.name}: {way} ids moved a wrong byte")


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
            if way == "auto" or layout == "rows":  # a block that is one run goes one way only
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
