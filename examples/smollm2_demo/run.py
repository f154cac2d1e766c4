"""From options to a report."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch
from cachecore_transformers import blocks_for, open_pool, plan_model

from cachecore import PluginRegistry, default_registry
from smollm2_demo.decode_speed import DTYPE, decode_speed_text, measure_decode_speed, why_no_decode_speed
from smollm2_demo.model import Loaded, load_model
from smollm2_demo.pair import Tally
from smollm2_demo.progress import Stage
from smollm2_demo.rates import measure_rates
from smollm2_demo.report import (
    describe_discovery,
    describe_plan,
    describe_run,
    discovery_text,
    layout_text,
    plan_text,
    run_text,
    write_files,
)
from smollm2_demo.story import NUM_FORKS, num_tokens, tell

__all__ = ["run_demo"]


def run_demo(options: argparse.Namespace) -> dict[str, Any]:
    show = _silent if options.json else _show
    torch.set_num_threads(options.threads)
    registry = default_registry()
    selection = registry.select(options.device, backend=options.backend)
    if options.backend is not None:  # who names one compares backends
        registry = registry.with_copies_first(selection.chosen.plugin.distribution)
    discovery = describe_discovery(registry, selection)
    show(discovery_text(discovery))
    with Stage("loading the model" + (", weights are unpacked to float32" if options.model == "smollm2" else "")):
        loaded = load_model(options.model, options.device)
    show(["", f"Model: {loaded.name}"])
    with _open(options, loaded, registry) as pool:
        plans = pool.engine.plans
        groups = describe_plan(plans, pool)
        show([*plan_text(groups), "", layout_text(plans), ""])
        tally = Tally()
        story = tell(loaded, pool, tally, new=options.tokens, inject_fault=options.inject_fault)
        with Stage("measuring the copies"):
            moves = measure_rates(pool)
    run = describe_run(story, tally, moves)
    report: dict[str, Any] = {"model": loaded.name, "discovery": discovery, "plan": groups, **run}
    report["decode_speed"] = _decode_speed(options, loaded)
    show([""])
    show(run_text(run, loaded.questions))
    show(decode_speed_text(report["decode_speed"]))
    report["files"] = write_files(options.out, plans, report)
    show(["", f"Written: {', '.join(report['files'].values())}"])
    return report


def _decode_speed(options: argparse.Namespace, loaded: Loaded) -> dict[str, Any]:
    reason = why_no_decode_speed(options.device, options.backend)
    if reason is not None:
        return {"skipped": reason}
    rows = measure_decode_speed(
        loaded.model,
        device=options.device,
        block_size=options.block_size,
        kernel_block_size=options.kernel_block_size,
        backend=options.backend,
    )
    return {"dtype": str(DTYPE).removeprefix("torch."), "rows": rows}


def _open(options: argparse.Namespace, loaded: Loaded, registry: PluginRegistry) -> Any:
    """A pool for the run, with room on the device for blocks to come back elsewhere."""
    config = loaded.model.config
    plans = plan_model(
        config,
        block_size=options.block_size,
        kernel_block_size=options.kernel_block_size,
        dtype=loaded.model.dtype,
        device=options.device,
        backend=options.backend,
    )
    needed = blocks_for(
        plans,
        num_sequences=NUM_FORKS * len(loaded.prompts),
        max_tokens=num_tokens(loaded.prompts, options.tokens),
    )
    return open_pool(
        config,
        plans=plans,
        num_blocks={name: 2 * count for name, count in needed.items()},
        num_host_blocks=needed,
        device=options.device,
        backend=options.backend,
        registry=registry,
    )


def _show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _silent(lines: Iterable[str]) -> None:
    """Print nothing: the JSON document holds it all."""
