"""Timing: all ways in turn on the same memory, medians, in one process."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from cachecore import (
    BlockPairs,
    CacheEngine,
    LayoutHints,
    PlanError,
    PluginError,
    default_registry,
    open_engine,
)
from cachecore.stats import CopyStats
from cachecore.transfer import block_segments
from cachecore_torch_default.bench.check import check_bytes, fill
from cachecore_torch_default.bench.scenarios import Scenario
from cachecore_torch_default.bench.ways import WAYS, Subject, contiguous_copy, strided_limit
from cachecore_torch_default.tensors import synchronize

__all__ = ["draw_pairs", "measure_scenario"]

_LIMIT, _CONTIGUOUS = "limit", "contiguous"

_LEAST_ROUNDS = 3
_ROUNDS = {False: (31, 5.0), True: (3, 0.5)}
"""Most rounds, and seconds after which no further one starts; by ``quick``."""


def measure_scenario(
    scenario: Scenario,
    direction: str,
    *,
    device: str,
    backend: str | None,
    num_pairs: int,
    quick: bool,
    own_copies: bool = False,
    one_run_per_block: bool = False,
) -> Iterator[dict[str, Any]]:
    """Open an engine, check every way's bytes, then time limit, contiguous copy and ways in turn."""
    registry = default_registry()
    record = registry.plan_backend(device, backend=backend)
    if own_copies:
        registry = registry.with_copies_first(record.plugin.distribution)
    plans = scenario.plans(
        record.info.load_policy(), device, record.info.name, LayoutHints(one_run_per_block=one_run_per_block)
    )
    runs = plans.only().layout.num_runs
    if one_run_per_block and runs > 1:
        raise PlanError(
            f"backend {record.info.name!r} does not honour one_run_per_block: a block of {scenario.name} is {runs} "
            "runs; measure its blocks as they are, without the hint (--one-run-per-block)"
        )
    with open_engine(
        plans, 2 * num_pairs, device=device, host_counts=num_pairs, backend=backend, registry=registry
    ) as engine:
        _check_tensors(engine)
        subject = Subject.of(engine, direction, _segments(engine, direction))
        drawn = [draw_pairs(direction, num_pairs, scenario.neighbours, seed) for seed in range(4)]
        moves = {name: way(subject) for name, way in WAYS.items()}
        fill(subject)
        for name, move in moves.items():
            check_bytes(subject, name, move, drawn[0])
        nbytes = num_pairs * scenario.block_nbytes
        fixed = {_CONTIGUOUS: contiguous_copy(subject, nbytes)}
        fixed[_LIMIT] = fixed[_CONTIGUOUS]
        on_host = engine.allocation().pools[0].device.type == "cpu"
        if direction == "copy" or on_host:
            fixed[_LIMIT] = strided_limit(subject, num_pairs)
        before = torch.get_num_threads()
        rounds, limit_s = _ROUNDS[quick]
        try:
            by_threads = {}
            for num_threads in _thread_counts() if on_host else [before]:
                torch.set_num_threads(num_threads)
                by_threads[num_threads] = _time(subject, fixed, moves, drawn, rounds, limit_s)
        finally:
            torch.set_num_threads(before)
        found = next(copy for copy in engine.stats().groups[0].copies if copy.direction == direction)
    for name in WAYS:
        yield _result(scenario, direction, name, found, num_pairs, by_threads, one_run_per_block)


def _check_tensors(engine: CacheEngine[Any]) -> None:
    pool = engine.allocation().pools[0]
    if not isinstance(pool, Tensor):
        raise PluginError(
            f"backend {engine.backend.name!r} keeps its memory in {type(pool).__name__}, and this benchmark measures "
            "torch tensors; name a backend of tensors with --backend, or another benchmark with --bench"
        )


def draw_pairs(direction: str, num_pairs: int, neighbours: int, seed: int) -> BlockPairs:
    """``num_pairs`` random pairs, ``neighbours`` side by side, between disjoint blocks where they share a tier."""
    generator = random.Random(seed)
    runs = num_pairs // neighbours

    def spread(first: int, of: list[int]) -> list[int]:
        return [first + run * neighbours + step for run in of for step in range(neighbours)]

    device = list(range(2 * runs))
    host = list(range(runs))
    generator.shuffle(device)
    generator.shuffle(host)
    if direction == "copy":
        return BlockPairs(spread(0, device[:runs]), spread(0, device[runs:]))
    ends = spread(0, device[:runs]), spread(0, host)
    return BlockPairs(*(ends if direction == "swap_out" else ends[::-1]))


def _segments(engine: CacheEngine[Tensor], direction: str) -> Any:
    plan, device, host = engine.plans.only(), engine.allocation(), engine.allocation(host=True)
    src, dst = {"copy": (device, device), "swap_out": (device, host), "swap_in": (host, device)}[direction]
    return block_segments(src.layout, src.num_entries, dst.layout, dst.num_entries, plan.pages_per_unit)


def _thread_counts() -> list[int]:
    return [1, 2] if (os.cpu_count() or 1) > 1 else [1]


def _time(
    subject: Subject,
    fixed: dict[str, Callable[[], None]],
    moves: dict[str, Any],
    drawn: list[BlockPairs],
    rounds: int,
    limit_s: float,
) -> dict[str, tuple[float, float]]:
    """Median seconds until done and until returned, by name."""
    device = subject.engine.allocation().pools[0].device
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in (*fixed, *moves)}
    began = perf_counter()
    for number in range(-1, rounds):
        if number >= _LEAST_ROUNDS and perf_counter() - began > limit_s:
            break
        pairs = drawn[number % len(drawn)]
        calls: dict[str, Callable[[], Any]] = {**fixed}
        calls.update((name, partial(move, pairs)) for name, move in moves.items())
        for name, call in calls.items():
            if number >= _LEAST_ROUNDS and sum(whole for whole, _ in taken[name]) > limit_s / len(calls):
                continue  # a slow way has had its share
            synchronize(device)
            start = perf_counter()
            call()
            returned = perf_counter()
            synchronize(device)
            if number >= 0:
                taken[name].append((perf_counter() - start, returned - start))
    return {name: (median(whole for whole, _ in one), median(part for _, part in one)) for name, one in taken.items()}


def _result(
    scenario: Scenario,
    direction: str,
    name: str,
    found: CopyStats,
    num_pairs: int,
    by_threads: dict[int, dict[str, tuple[float, float]]],
    one_run_per_block: bool,
) -> dict[str, Any]:
    """At the thread count that is faster for this way; rates are 1e9 payload bytes a second, counted once."""
    ratios = {count: times[_LIMIT][0] / times[name][0] for count, times in by_threads.items()}
    best = min(by_threads, key=lambda count: by_threads[count][name][0])
    times = by_threads[best]
    nbytes = num_pairs * scenario.block_nbytes
    return {
        "scenario": scenario.name,
        "direction": direction,
        "model": scenario.model,
        "one_run_per_block": one_run_per_block,
        "run_nbytes": scenario.block_nbytes if one_run_per_block else scenario.run_nbytes,
        "num_pairs": num_pairs,
        "nbytes": nbytes,
        "path": found.path if name == "engine" else name,
        "record": found.record if name == "engine" else None,
        "peer": name != "engine",
        "gb_per_s": nbytes / times[name][0] / 1e9,
        "limit_gb_per_s": nbytes / times[_LIMIT][0] / 1e9,
        "ratio": ratios[best],
        "contiguous_ratio": times[_CONTIGUOUS][0] / times[name][0],
        "submit_s": times[name][1],
        "num_threads": best,
        "ratio_by_threads": {str(count): ratio for count, ratio in ratios.items()},
    }
