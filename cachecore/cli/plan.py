"""``cachecore plan``: from a model's shape to a plan, its size, and how much of it fits a memory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cachecore.build import build_block_cache_plan
from cachecore.cli.terminal import add_json, byte_count, device_name, print_json, table, usage_error
from cachecore.kv import MOST_LAYERS, QUANT_POLICIES, KvCacheConfig
from cachecore.nbytes import exact_nbytes, format_nbytes
from cachecore.plan import GroupSpec
from cachecore.plan_set import CachePlanSet
from cachecore.registry import PluginRegistry
from cachecore.schema import BlockCacheGeometry
from cachecore.sizing import UNBOUNDED, SizingAnswer, solve

_DESCRIPTION = """\
Plan the K/V caches of a model of a given shape for a device, without touching the device.

The backend's policy chooses the layout, so the plugin must be installed; the device need not be there.
"""

_MOST_DIGITS = 18
"""Digits of a 64-bit number; Python refuses to read thousands."""

_EPILOG = """\
examples:
  Llama-3-8B on a GPU, int8 K/V, and what 20 GiB hold:
    cachecore plan --layers 32 --kv-heads 8 --head-dim 128 --dtype bfloat16 --quant-policy int8 \\
        --block-size 64 --kernel-block-size 16 --device cuda --memory 20GiB -o plan.json
  Gemma-3 with three full layers, the rest keep a window of 512 tokens:
    cachecore plan --layers 18 --sliding-layers 0-4,6-10,12-16 --window 512 --kv-heads 1 --head-dim 256 \\
        --memory 8GiB --context-length 8192
  DeepSeek-V3, one latent a token:
    cachecore plan --layers 61 --latent-dim 512 --rope-dim 64 --dtype bfloat16 --block-size 64
"""


def add_command(commands: Any, style: dict[str, Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plan", help="plan a model's caches and size them", description=_DESCRIPTION, epilog=_EPILOG, **style
    )
    model = parser.add_argument_group("the model")
    model.add_argument("--layers", required=True, type=_layers, metavar="N", help="a count, or layer ids: 0-15,20")
    model.add_argument("--kv-heads", type=int, default=1, metavar="N", help="K/V heads over all ranks (default: 1)")
    model.add_argument("--head-dim", type=int, metavar="N", help="elements of a K/V head")
    model.add_argument("--v-head-dim", type=int, metavar="N", help="elements of a V head, where it differs")
    model.add_argument("--latent-dim", type=int, metavar="N", help="MLA: elements of the latent, instead of heads")
    model.add_argument("--rope-dim", type=int, default=0, metavar="N", help="MLA: rotary elements beside the latent")
    model.add_argument("--sparse-mla", action="store_true", help="MLA with an index top-k: fp8 means fp8_ds_mla")
    model.add_argument("--dtype", default="bfloat16", help="the model's dtype, as torch names it (default: bfloat16)")
    model.add_argument("--sliding-layers", type=_layer_ids, metavar="IDS", help="ids of layers that keep a window")
    model.add_argument("--window", type=int, metavar="TOKENS", help="the window of --sliding-layers")
    cache = parser.add_argument_group("the cache")
    cache.add_argument("--quant-policy", default="none", metavar="NAME", help=f"one of {', '.join(QUANT_POLICIES)}")
    cache.add_argument("--block-size", type=int, default=64, metavar="TOKENS", help="scheduler's block (default: 64)")
    cache.add_argument("--kernel-block-size", type=int, metavar="TOKENS", help="kernel page (default: the block)")
    cache.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks (default: 1)")
    cache.add_argument("--tp-rank", type=int, default=0, metavar="N", help="which rank to plan for (default: 0)")
    place = parser.add_argument_group("where")
    place.add_argument("--device", type=device_name, default="cpu", help="device to plan for (default: cpu)")
    place.add_argument("--backend", metavar="NAME", help="force a backend: name or name@distribution")
    place.add_argument("--memory", type=byte_count, metavar="BYTES", help="device memory for caches, such as 20GiB")
    place.add_argument("--host-memory", type=byte_count, metavar="BYTES", help="host memory for swapped blocks")
    place.add_argument("--context-length", type=int, metavar="TOKENS", help="tokens of a typical sequence")
    parser.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan")
    add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Plan, size and write."""
    if (options.sliding_layers is None) != (options.window is None):
        usage_error(options, "--sliding-layers and --window go together: give both or neither")
    plans = _plan(options)
    answers: dict[str, SizingAnswer | None] = {}
    for tier, memory in (("device", options.memory), ("host", options.host_memory)):
        if memory is not None and options.context_length is None and len(plans) > 1:
            usage_error(options, f"groups {', '.join(plans.names)} share the memory; say how with --context-length")
        answers[tier] = (
            None
            if memory is None
            else solve(plans, memory_nbytes=memory, context_length=options.context_length, host=tier == "host")
        )
    if options.output is not None:
        Path(options.output).write_text(plans.dumps() + "\n", encoding="utf-8")
    if options.json:
        print_json(_data(plans, answers, options.output))
    else:
        print("\n".join(_text(plans, answers, options.output)))
    return 0


def _plan(options: argparse.Namespace) -> CachePlanSet:
    geometry = BlockCacheGeometry(options.block_size, options.kernel_block_size)
    sliding = options.sliding_layers or []
    unknown = sorted(set(sliding) - set(options.layers))
    if unknown:
        usage_error(options, f"--sliding-layers names layer {unknown[0]}, which --layers does not have")
    full = [layer for layer in options.layers if layer not in set(sliding)]
    groups = [GroupSpec("sliding", geometry, options.window)] if sliding else []
    registry = PluginRegistry()
    registry.load_entry_points()
    return build_block_cache_plan(
        geometry=geometry,
        device=options.device,
        kv=[_config(options, layers, name) for name, layers in (("full", full), ("sliding", sliding)) if layers],
        groups=groups,
        backend=options.backend,
        registry=registry,
    )


def _config(options: argparse.Namespace, layers: Sequence[int], group: str) -> KvCacheConfig:
    return KvCacheConfig(
        layers=layers,
        dtype=options.dtype,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        v_head_dim=options.v_head_dim,
        quant_policy=options.quant_policy,
        tp_size=options.tp,
        tp_rank=options.tp_rank,
        latent_dim=options.latent_dim,
        rope_dim=options.rope_dim,
        sparse_mla=options.sparse_mla,
        group=group,
    )


def _data(plans: CachePlanSet, answers: dict[str, SizingAnswer | None], output: str | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "device": plans.device,
        "backend": plans.backend,
        "groups": [
            {
                "group": plan.name,
                "logical_block_size": plan.geometry.logical_block_size,
                "window": plan.group.window,
                "policy": plan.policy,
                "policy_version": plan.policy_version,
                "layout": plan.layout.kind,
                "block_nbytes": plan.block_nbytes(),
                "host_block_nbytes": plan.block_nbytes(host=True),
            }
            for plan in plans.blocks
        ],
    }
    for tier, answer in answers.items():
        data[tier] = answer and {
            "num_blocks": dict(answer.counts),
            "needed_nbytes": answer.needed_nbytes,
            "budget_nbytes": answer.budget_nbytes,
            "longest_sequence": None if answer.longest_sequence == UNBOUNDED else answer.longest_sequence,
            "num_requests": answer.num_requests,
        }
    data["output"] = output
    if output is None:
        data["plan"] = plans.to_json()
    return data


def _text(plans: CachePlanSet, answers: dict[str, SizingAnswer | None], output: str | None) -> list[str]:
    lines = [f"plan for device {plans.device} by backend {plans.backend}"]
    rows = [
        [
            plan.name,
            plan.specs[0].num_rows,
            plan.layout.kind,
            plan.geometry.logical_block_size,
            exact_nbytes(plan.block_nbytes()),
            format_nbytes(plan.block_nbytes() / plan.geometry.logical_block_size),
        ]
        for plan in plans.blocks
    ]
    lines += table(["group", "layers", "layout", "tokens a block", "a block", "a token"], rows, right="1345")
    for tier, answer in answers.items():
        if answer is not None:
            lines += _sized(tier, answer)
    if output is not None:
        lines.append(f"wrote {output}; `cachecore explain {output}` tells why every byte stands where it does")
    return lines


def _sized(tier: str, answer: SizingAnswer) -> list[str]:
    counts = ", ".join(f"{count:,} blocks of group {name}" for name, count in answer.counts.items())
    longest = "of any length" if answer.longest_sequence == UNBOUNDED else f"{answer.longest_sequence:,} tokens"
    left = answer.budget_nbytes - answer.needed_nbytes
    lines = [
        f"{tier}: {format_nbytes(answer.budget_nbytes)} hold {counts} ({format_nbytes(left)} left)",
        f"  the longest sequence that fits: {longest}",
    ]
    if answer.num_requests is not None:
        lines.append(f"  sequences of {answer.context_length:,} tokens that fit at once: {answer.num_requests:,}")
    return lines


def _layers(text: str) -> list[int]:
    """A count of layers, or their ids."""
    if not text.isdecimal():
        return _layer_ids(text)
    count = _number(text)
    if not 0 < count <= MOST_LAYERS:
        raise argparse.ArgumentTypeError(f"{text} layers; expected 1 to {MOST_LAYERS:,}")
    return list(range(count))


def _layer_ids(text: str) -> list[int]:
    """Ids such as ``0-4,6``."""
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise argparse.ArgumentTypeError(f"{text!r} lists no layers; expected ids such as 0-4,6 or a count")
        start, end = _number(first), _number(last if dash else first)
        if end < start:
            raise argparse.ArgumentTypeError(
                f"{text!r} lists no layers from {start} to {end}; expected ids such as 0-4"
            )
        if end - start + len(ids) >= MOST_LAYERS:
            raise argparse.ArgumentTypeError(f"{text!r} lists more than {MOST_LAYERS:,} layers")
        ids += range(start, end + 1)
    return ids


def _number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise argparse.ArgumentTypeError(f"a layer id of {len(digits)} digits is a mistake")
    return int(digits)
