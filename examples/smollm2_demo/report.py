"""What the demo found, as data, as text and as files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cachecore_transformers import CachePool

from cachecore import CachePlanSet, PluginRegistry
from cachecore.nbytes import both_nbytes, format_nbytes
from cachecore.picture import layout_svg, layout_text
from cachecore.registry import Selection
from smollm2_demo.pair import Tally
from smollm2_demo.story import NUM_BEAMS, NUM_FORKS, Story

__all__ = [
    "describe_discovery",
    "describe_plan",
    "describe_run",
    "discovery_text",
    "plan_text",
    "run_text",
    "write_files",
]


def describe_discovery(registry: PluginRegistry, selection: Selection) -> dict[str, Any]:
    """Which plugins were found, which backend serves the device, and why not the others."""
    chosen = selection.chosen
    return {
        "device": str(selection.device),
        "backend": chosen.info.name,
        "distribution": chosen.plugin.distribution,
        "version": chosen.plugin.version,
        "reason": selection.reason,
        "plugins": [
            {"plugin": plugin.name, "distribution": plugin.distribution, "version": plugin.version}
            for plugin in registry.plugins
        ],
        "rejected": [
            {"backend": record.info.name, "distribution": record.plugin.distribution, "reason": reason}
            for record, reason in selection.rejected
        ],
        "not_used": [
            {"plugin": failure.plugin.name, "distribution": failure.plugin.distribution, "reason": failure.reason}
            for failure in (*registry.failures, *registry.skipped)
        ],
    }


def discovery_text(found: dict[str, Any]) -> Iterator[str]:
    """Lines for a terminal."""
    plugins = (f"{one['plugin']} ({one['distribution']} {one['version']})" for one in found["plugins"])
    yield f"Plugins found: {', '.join(plugins) or 'none'}"
    yield f"Backend for {found['device']}: {found['backend']} ({found['distribution']} {found['version']})"
    yield f"  because: {found['reason']}"
    for other in found["rejected"]:
        yield f"  not {other['backend']} ({other['distribution']}): {other['reason']}"
    for other in found["not_used"]:
        yield f"  plugin {other['plugin']} ({other['distribution']}) is not used: {other['reason']}"


def describe_plan(plans: CachePlanSet, pool: CachePool) -> list[dict[str, Any]]:
    """Every group: what a block holds, where it stands, how many there are."""
    stats = {group.group: group for group in pool.engine.stats().groups}
    return [
        {
            "group": plan.name,
            "policy": f"{plan.policy} {plan.policy_version}",
            "block_size": plan.geometry.logical_block_size,
            "kernel_block_size": plan.geometry.page_size,
            "window": plan.group.window,
            "tensors": [
                {"name": spec.name, "rows": spec.num_rows, "page": list(spec.shape), "dtype": spec.dtype}
                for spec in plan.specs
            ],
            "device_layout": plan.layout.kind,
            "host_layout": plan.host_layout.kind,
            "block_nbytes": plan.block_nbytes(),
            "padding_nbytes": plan.layout.padding_nbytes * plan.num_entries(1),
            "num_blocks": stats[plan.name].num_blocks,
            "num_host_blocks": stats[plan.name].num_host_blocks,
            "nbytes": stats[plan.name].reserved_nbytes,
            "host_nbytes": stats[plan.name].host_reserved_nbytes,
            "host_memory": stats[plan.name].host_memory_kind,
        }
        for plan in plans.blocks
    ]


def plan_text(groups: list[dict[str, Any]]) -> Iterator[str]:
    """Lines for a terminal."""
    for group in groups:
        window = "" if group["window"] is None else f", window {group['window']}"
        yield (
            f"Group {group['group']}: blocks of {group['block_size']} tokens ({group['kernel_block_size']} a kernel "
            f"page){window}, laid out by policy {group['policy']}"
        )
        for tensor in group["tensors"]:
            yield f"  {tensor['name']}: {tensor['rows']} layers x {tuple(tensor['page'])} {tensor['dtype']} a page"
        padding = group["padding_nbytes"]
        told = f"{both_nbytes(padding)} of them padding" if padding else "no padding"
        yield f"  a block: {both_nbytes(group['block_nbytes'])}, {told}"
        yield f"  device: {group['num_blocks']} blocks, {group['device_layout']}, {both_nbytes(group['nbytes'])}"
        pinned = ", page-locked" if group["host_memory"] == "host:pinned" else ""
        yield (
            f"  host{pinned}: {group['num_host_blocks']} blocks, {group['host_layout']}, "
            f"{both_nbytes(group['host_nbytes'])}"
        )


def describe_run(story: Story, tally: Tally, moves: list[dict[str, Any]]) -> dict[str, Any]:
    """Answers, checks and speed."""
    return {
        "story": asdict(story),
        "check": {
            "equal": tally.difference is None,
            "num_calls": tally.num_calls,
            "num_logits": tally.num_logits,
            "first_difference": None if tally.difference is None else asdict(tally.difference),
        },
        "tokens_per_s": {
            "blocks": tally.num_tokens / tally.blocks_s,
            "plain": tally.num_tokens / tally.plain_s,
            "decode_blocks": tally.decoded / tally.decode_blocks_s,
            "decode_plain": tally.decoded / tally.decode_plain_s,
        },
        "moves": moves,
    }


def run_text(run: dict[str, Any], questions: tuple[str, ...]) -> Iterator[str]:
    """Lines for a terminal."""
    story = run["story"]
    yield f"Answers ({NUM_FORKS} samples a question, forked after the first words):"
    for question, answers in zip(questions, story["answers"], strict=True):
        yield f"  {question}"
        yield from (f"    - {' '.join(answer.split())}" for answer in answers)
    yield f"Beam search ({NUM_BEAMS} beams):"
    yield from (f"    - {' '.join(answer.split())}" for answer in story["beams"])
    yield ""
    shared = ", ".join(f"{count} in {name}" for name, count in story["shared_blocks"].items())
    yield f"Blocks shared by several sequences after the forks: {shared}"
    swapped = story["swapped"]
    back = swapped["num_back_in_place"]
    yield (
        f"Swap: {swapped['num_blocks']} blocks to the host and back; device blocks in use meanwhile: "
        f"{sum(swapped['used_meanwhile'].values())}; "
        + (f"{back} of them came back into the device blocks they had left" if back else "all came back into others")
    )
    yield f"Blocks still held at the end: {sum(story['left_over'].values())}"
    speed = run["tokens_per_s"]
    yield (
        f"Tokens/s: {speed['blocks']:.1f} on blocks, {speed['plain']:.1f} on plain transformers "
        f"(decoding alone: {speed['decode_blocks']:.1f} and {speed['decode_plain']:.1f})"
    )
    yield "Blocks moved, and the rate of random blocks beside one contiguous copy of as many bytes:"
    for move in run["moves"]:
        yield (
            f"{move['kind']:>10} in {move['group']}: {move['num_blocks']} blocks, {format_nbytes(move['nbytes'])}; "
            f"{move['measured_blocks']} random blocks at {move['bytes_per_s'] / 1e9:.2f} GB/s, contiguous at "
            f"{move['contiguous_bytes_per_s'] / 1e9:.2f} GB/s ({move['path']} by {move['record']}"
            f"{', a fallback' if move['fallback'] else ''})"
        )
    check = run["check"]
    if check["equal"]:
        calls = f"{check['num_logits']:,} in {check['num_calls']} calls"
        yield f"Every logit is bitwise equal to plain transformers: {calls}."
    else:
        first = check["first_difference"]
        yield (
            f"LOGITS DIFFER from plain transformers, first in call {first['call']} ({first['stage']}): "
            f"{first['num_different']} values, by up to {first['largest']:g}"
        )


def write_files(out: Path, plans: CachePlanSet, report: dict[str, Any]) -> dict[str, str]:
    """Write plan, picture and report into ``out``: all of them, or none when interrupted."""
    counts = {group["group"]: group["num_blocks"] for group in report["plan"]}
    texts = {
        "layout.svg": layout_svg(plans, counts),
        "layout.txt": layout_text(plans, counts) + "\n",
        "plan.json": plans.dumps(),
        "report.json": json.dumps(report, indent=2) + "\n",
    }
    found = out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as folder:
            for name, text in texts.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            for name in texts:
                (Path(folder) / name).replace(out / name)
    except BaseException:
        if not found:
            shutil.rmtree(out, ignore_errors=True)
        raise
    return {name: str(out / name) for name in texts}
