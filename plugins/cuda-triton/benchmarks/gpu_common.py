"""Engines of a scenario, pairs and timing: what the benchmarks of copies and swaps share."""

from __future__ import annotations

import random
import time
from statistics import median

import torch
from cachecore_cuda_triton import plugin as cuda_plugin
from cachecore_torch_default import plugin as torch_plugin
from cachecore_torch_default.bench import SCENARIOS

from cachecore import BlockPairs, CacheEngine, LayoutHints, PluginRecord, PluginRegistry, StandardLayoutPolicy

__all__ = ["DEVICE", "RESULTS", "in_turn", "open_scenario", "pages_of", "pairs_of", "registry", "submit_seconds"]

DEVICE = torch.device("cuda", 0)
RESULTS: list[dict] = []
"""Everything measured so far."""


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


def pages_of(engine: CacheEngine) -> int:
    """Entries that a block takes up in the device's pools."""
    plan = engine.plans.only()
    return plan.pages_per_unit // plan.layout.pages_per_entry
