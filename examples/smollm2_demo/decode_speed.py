"""Decode tokens per second of one model with several caches, side by side: blocks read in place, gathered, plain."""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from cachecore_transformers import CachecoreCache, DecodeGraph, blocks_for, open_pool, plan_model
from transformers import DynamicCache, StaticCache

from cachecore import CacheCoreError, CachePlanSet, LayoutHints, StandardLayoutPolicy, default_registry, plan_from_specs
from smollm2_demo.pair import wait_for
from smollm2_demo.progress import Stage

__all__ = ["DTYPE", "Load", "decode_speed_text", "measure_decode_speed", "why_no_decode_speed"]

GRAPH = "CUDA graph"
WARM_UP = 4
"""Steps before the clock starts: kernels are compiled, a graph is captured."""


class Load(NamedTuple):
    """One measurement: sequences, tokens of each before the first step, and steps on the clock."""

    num_sequences: int
    num_tokens: int
    num_steps: int = 24


LOADS = (Load(1, 1024), Load(16, 1024), Load(64, 1024), Load(64, 2048, 12))


DTYPE = torch.bfloat16


class Run(NamedTuple):
    """What one way took and computed."""

    seconds: float
    logits: torch.Tensor
    paths: list[str]


def why_no_decode_speed(device: str, backend: str | None) -> str | None:
    """None where the backend of ``device`` brings kernels that read the blocks, else why it is not measured."""
    chosen = default_registry().select(device, backend=backend).chosen.info
    if hasattr(chosen.load(), "paged_decode_attention"):
        return None
    return f"backend {chosen.name!r} brings no attention that reads the blocks where they are"


def measure_decode_speed(
    loaded: Any, *, device: str, block_size: int, kernel_block_size: int | None, backend: str | None
) -> list[dict[str, Any]]:  # fmt: skip
    """One row a load and way. A way that fails has an ``error`` and no figures; the others go on."""
    model, loads = copy.deepcopy(loaded).to(DTYPE), LOADS
    plans, one_run = (
        plan_model(
            model.config, block_size=block_size, kernel_block_size=kernel_block_size, dtype=DTYPE, device=device,
            backend=backend, hints=hints,
        )
        for hints in (LayoutHints(), LayoutHints(one_run_per_block=True))
    )  # fmt: skip
    ways = _ways(plans, one_run, device, backend)
    # Captured ways last, for all loads: what fails there may take the device with it.
    order = [(load, way) for last in (False, True) for load in loads for way in ways if way.endswith(GRAPH) == last]
    expected: dict[Load, torch.Tensor] = {}
    rows = []
    for load, name in order:
        row: dict[str, Any] = {"way": name, **load._asdict()}
        with Stage(f"decoding {load.num_sequences} x {load.num_tokens}: {name}"):
            try:
                run = ways[name](model, _tokens(model, load), load)
            except (CacheCoreError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                row["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            else:
                same = expected.setdefault(load, run.logits)
                row["tokens_per_s"] = load.num_sequences / run.seconds
                row["step_ms"] = run.seconds * 1e3
                row["difference"] = float((run.logits - same).norm() / same.norm())
                row["paths"] = run.paths
        rows.append(row)
    return sorted(rows, key=lambda row: loads.index(Load(row["num_sequences"], row["num_tokens"], row["num_steps"])))


def _tokens(model: Any, load: Load) -> torch.Tensor:
    """Prompts and what follows, the same for every way."""
    shape = load.num_sequences, load.num_tokens + WARM_UP + load.num_steps
    generator = torch.Generator().manual_seed(11)
    return torch.randint(3, model.config.vocab_size, shape, generator=generator).to(model.device)


def _ways(
    plans: CachePlanSet, one_run: CachePlanSet, device: str, backend: str | None
) -> dict[str, Callable[..., Run]]:
    def blocks(attention: str, layouts: CachePlanSet, *, graph: bool = False) -> Callable[..., Run]:
        def run(model: Any, ids: torch.Tensor, load: Load) -> Run:
            counts = blocks_for(layouts, num_sequences=load.num_sequences, max_tokens=ids.shape[1])
            model.set_attn_implementation(attention)
            with (
                open_pool(model.config, plans=layouts, num_blocks=counts, device=device, backend=backend) as pool,
                CachecoreCache(pool) as cache,
            ):
                found = _run(model, cache, ids, load, DecodeGraph if graph else None)
                paths = sorted({path.reason or path.path for path in cache.attention_paths()})
                return found._replace(paths=paths)

        return run

    def plain(model: Any, ids: torch.Tensor, load: Load) -> Run:
        model.set_attn_implementation("sdpa")
        return _run(model, DynamicCache(config=model.config), ids, load)

    def static(*, graph: bool) -> Callable[..., Run]:
        def run(model: Any, ids: torch.Tensor, load: Load) -> Run:
            model.set_attn_implementation("sdpa")
            cache = StaticCache(config=model.config, max_cache_len=ids.shape[1])
            return _run(model, cache, ids, load, _StaticGraph if graph else None)

        return run

    dense = contiguous(plans)
    return {
        "transformers, DynamicCache": plain,
        "blocks, gathered": blocks("sdpa", plans),
        "blocks, paged, packed": blocks("cachecore", plans),
        "blocks, paged, contiguous": blocks("cachecore", dense),
        "blocks, paged, one run a block": blocks("cachecore", one_run),
        "transformers, StaticCache": static(graph=False),
        "transformers, StaticCache, " + GRAPH: static(graph=True),
        "blocks, paged, packed, " + GRAPH: blocks("cachecore", plans, graph=True),
        "blocks, paged, contiguous, " + GRAPH: blocks("cachecore", dense, graph=True),
        "blocks, paged, one run a block, " + GRAPH: blocks("cachecore", one_run, graph=True),
    }


def contiguous(plans: CachePlanSet) -> CachePlanSet:
    """The same cache with every layer's keys, and every layer's values, dense."""
    groups = tuple(
        plan_from_specs(
            [dataclasses.replace(spec, per_row_contiguous=True) for spec in plan.specs],
            plan.geometry, StandardLayoutPolicy(), group=plan.name, window=plan.group.window,
        )
        for plan in plans.blocks
    )  # fmt: skip
    return dataclasses.replace(plans, groups=groups)


def _run(model: Any, cache: Any, ids: torch.Tensor, load: Load, graph: Any = None) -> Run:
    """Prefill, warm up, and decode the given tokens, so that every way computes the same; the median step."""
    device = model.device
    with torch.inference_mode():
        model(ids[:, : load.num_tokens], past_key_values=cache, use_cache=True, logits_to_keep=1)
        step = graph(model, cache) if graph else lambda one: model(one, past_key_values=cache, use_cache=True).logits
        for at in range(load.num_tokens, load.num_tokens + WARM_UP):
            step(ids[:, at : at + 1])
        samples = []
        for first in range(load.num_tokens + WARM_UP, ids.shape[1], 4):
            wait_for(device)
            started = time.perf_counter()
            some = range(first, min(first + 4, ids.shape[1]))
            for at in some:
                logits = step(ids[:, at : at + 1])
            wait_for(device)
            samples.append((time.perf_counter() - started) / len(some))
        return Run(statistics.median(samples), logits.float().clone(), [])


class _StaticGraph:
    """transformers' own cache of fixed size, whose step is captured too."""

    def __init__(self, model: Any, cache: Any) -> None:
        if model.device.type != "cuda":
            raise RuntimeError(f"the model is on {model.device}; graphs are for CUDA")
        self._model, self._cache = model, cache
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ids = self._positions = self._logits = torch.empty(0)
        self._length = int(cache.get_seq_length())
        self._is_warm = False

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        if not self._is_warm:
            self._ids = ids.clone()
            self._positions = torch.full_like(ids, self._length)
        self._ids.copy_(ids)
        self._positions.fill_(self._length)
        self._length += 1
        if not self._is_warm:
            self._is_warm = True
            return self._forward()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=torch.cuda.Stream(self._model.device)):
                self._logits = self._forward()
        self._graph.replay()
        return self._logits

    def _forward(self) -> torch.Tensor:
        logits: torch.Tensor = self._model(
            self._ids, position_ids=self._positions, past_key_values=self._cache, use_cache=True
        ).logits
        return logits


def decode_speed_text(found: dict[str, Any]) -> Iterator[str]:
    """Lines for a terminal."""
    if "skipped" in found:
        yield f"Decode speed of the caches side by side is not measured: {found['skipped']}"
        return
    yield (
        f"Decoding in {found['dtype']}, tokens/s of all sequences (ms a step; difference of the last logits to the "
        "first way's):"
    )
    for row in found["rows"]:
        load = f"{row['num_sequences']:3} x {row['num_tokens']}"
        if "error" in row:
            yield f"  {load}  {row['way']:44} failed: {row['error']}"
            continue
        read_otherwise = "paged" in row["way"] and row["paths"] != ["paged"]
        paths = f"  [{'; '.join(row['paths'])}]" if read_otherwise else ""
        yield (
            f"  {load}  {row['way']:44} {row['tokens_per_s']:10,.0f}  ({row['step_ms']:.2f} ms; "
            f"{row['difference']:.1e}){paths}"
        )
