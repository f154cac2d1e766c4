"""``cachecore plan``: from a model's shape to a plan, its size, and how much of it fits a memory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cachecore.build import build_block_cache_plan
from cachecore.cli.options import (
    add_json,
    at_least,
    byte_count,
    device_name,
    layer_count,
    layer_ids,
    model_dtype,
    usage_error,
)
from cachecore.cli.planned import planned_data, planned_lines
from cachecore.cli.terminal import print_json, show, write_text
from cachecore.errors import PlanError
from cachecore.kv import QUANT_POLICIES, KvCacheConfig, head_shard
from cachecore.layout_kinds import BASE_ALIGNMENT
from cachecore.plan import GroupSpec
from cachecore.plan_set import CachePlanSet
from cachecore.policy import LayoutHints
from cachecore.registry import PluginRegistry
from cachecore.schema import BlockCacheGeometry
from cachecore.sizing import SizingAnswer, solve

_DESCRIPTION = """\
Plan the K/V caches of a model of a given shape for a device, without touching the device.

The backend's policy chooses the layout, so the plugin must be installed; the device need not be there.
"""

_EPILOG = """\
examples:
  Llama-3-8B on a GPU, int8 K/V, and what 20 GiB hold:
    cachecore plan --layers 32 --kv-heads 8 --head-dim 128 --dtype bfloat16 --quant-policy int8 \\
        --block-size 64 --kernel-block-size 16 --device cuda --memory 20GiB -o plan.json
  Llama-3-8B where blocks are swapped: one run each, in pools that start at 2 MiB for the transfers:
    cachecore plan --layers 32 --kv-heads 8 --head-dim 128 --block-size 64 --kernel-block-size 16 --device cuda \\
        --one-run-per-block --base-alignment 2MiB --memory 20GiB --host-memory 64GiB -o plan.json
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
    model.add_argument("--layers", required=True, type=layer_count, metavar="N", help="a count, or layer ids: 0-15,20")
    model.add_argument("--kv-heads", type=at_least(1), metavar="N", help="K/V heads over all ranks (default: 1)")
    model.add_argument("--head-dim", type=at_least(1), metavar="N", help="elements of a K/V head")
    model.add_argument("--v-head-dim", type=at_least(0), metavar="N", help="elements of a V head, where it differs")
    model.add_argument(
        "--latent-dim", type=at_least(1), metavar="N", help="MLA: elements of the latent, instead of heads"
    )
    model.add_argument("--rope-dim", type=at_least(0), metavar="N", help="MLA: rotary elements beside the latent")
    model.add_argument("--sparse-mla", action="store_true", help="MLA with an index top-k: fp8 means fp8_ds_mla")
    model.add_argument(
        "--dtype", type=model_dtype, default="bfloat16", help="the model's dtype, as torch names it (default: bfloat16)"
    )
    model.add_argument("--sliding-layers", type=layer_ids, metavar="IDS", help="ids of layers that keep a window")
    model.add_argument("--window", type=at_least(1), metavar="TOKENS", help="the window of --sliding-layers")
    cache = parser.add_argument_group("the cache")
    quant_help = f"one of {', '.join(QUANT_POLICIES)}"
    cache.add_argument("--quant-policy", choices=tuple(QUANT_POLICIES), default="none", metavar="NAME", help=quant_help)
    cache.add_argument(
        "--block-size", type=at_least(1), default=64, metavar="TOKENS", help="scheduler's block (default: 64)"
    )
    cache.add_argument(
        "--kernel-block-size", type=at_least(1), metavar="TOKENS", help="kernel page (default: the block)"
    )
    cache.add_argument("--tp", type=at_least(1), default=1, metavar="N", help="tensor-parallel ranks (default: 1)")
    cache.add_argument(
        "--tp-rank", type=at_least(0), default=0, metavar="N", help="which rank to plan for (default: 0)"
    )
    cache.add_argument(
        "--one-run-per-block",
        action="store_true",
        help="lay a block out as one run of bytes, where blocks are swapped and kernels count in 64 bits",
    )
    cache.add_argument(
        "--base-alignment",
        type=byte_count,
        default=BASE_ALIGNMENT,
        metavar="BYTES",
        help=f"where every pool starts, such as 2MiB (default: {BASE_ALIGNMENT})",
    )
    place = parser.add_argument_group("where")
    place.add_argument("--device", type=device_name, default="cpu", help="device to plan for (default: cpu)")
    place.add_argument("--backend", metavar="NAME", help="force a backend: name or name@distribution")
    place.add_argument("--memory", type=byte_count, metavar="BYTES", help="device memory for caches, such as 20GiB")
    place.add_argument("--host-memory", type=byte_count, metavar="BYTES", help="host memory for swapped blocks")
    place.add_argument("--context-length", type=at_least(1), metavar="TOKENS", help="tokens of a typical sequence")
    parser.add_argument("-o", "--output", metavar="PLAN.json", help="write the plan")
    add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Plan, size and write."""
    _check_together(options)
    plans, hints = _plan(options)
    assumed = [] if options.latent_dim or options.kv_heads else ["--kv-heads was not given, so K and V have one head"]
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
        write_text(options.output, plans.dumps() + "\n")
    if options.json:
        print_json(planned_data(plans, hints, answers, assumed, options.output))
    else:
        show("\n".join(planned_lines(plans, hints, answers, assumed, options.output)))
    return 0


def _check_together(options: argparse.Namespace) -> None:
    """Refuse options that say nothing without another one, or contradict it: none is ignored silently."""
    if options.output == "-":
        usage_error(options, "-o - would be a file of that name; name one, or take the plan from --json")
    if (options.sliding_layers is None) != (options.window is None):
        usage_error(options, "--sliding-layers and --window go together: give both or neither")
    if options.context_length is not None and options.memory is None and options.host_memory is None:
        usage_error(options, "--context-length says how a memory is shared; give --memory or --host-memory too")
    heads = {"--kv-heads": options.kv_heads, "--head-dim": options.head_dim, "--v-head-dim": options.v_head_dim}
    given = [name for name, value in heads.items() if value is not None]
    if options.latent_dim is not None and given:
        usage_error(options, f"{given[0]} and --latent-dim contradict each other: MLA keeps one latent, no heads")
    latent = {"--rope-dim": options.rope_dim, "--sparse-mla": options.sparse_mla or None}
    given = [name for name, value in latent.items() if value is not None]
    if options.latent_dim is None and given:
        usage_error(options, f"{given[0]} belongs to MLA; give --latent-dim too")


def _plan(options: argparse.Namespace) -> tuple[CachePlanSet, LayoutHints]:
    sliding = options.sliding_layers or []
    unknown = sorted(set(sliding) - set(options.layers))
    if unknown:
        usage_error(options, f"--sliding-layers names layer {unknown[0]}, which --layers does not have")
    full = [layer for layer in options.layers if layer not in set(sliding)]
    try:
        hints = LayoutHints(options.one_run_per_block, options.base_alignment)
        geometry = BlockCacheGeometry(options.block_size, options.kernel_block_size)
        configs = [_config(options, layers, name) for name, layers in (("full", full), ("sliding", sliding)) if layers]
        if options.latent_dim is None:
            head_shard(configs[0].num_kv_heads, options.tp, options.tp_rank)
    except PlanError as error:  # of the options alone, whatever is installed
        usage_error(options, str(error))
    groups = [GroupSpec("sliding", geometry, options.window)] if sliding else []
    registry = PluginRegistry()
    registry.load_entry_points()
    plans = build_block_cache_plan(
        geometry=geometry,
        device=options.device,
        kv=configs,
        groups=groups,
        hints=hints,
        backend=options.backend,
        registry=registry,
    )
    return plans, hints


def _config(options: argparse.Namespace, layers: Sequence[int], group: str) -> KvCacheConfig:
    return KvCacheConfig(
        layers=layers,
        dtype=options.dtype,
        num_kv_heads=1 if options.kv_heads is None else options.kv_heads,
        head_dim=options.head_dim,
        v_head_dim=options.v_head_dim,
        quant_policy=options.quant_policy,
        tp_size=options.tp,
        tp_rank=options.tp_rank,
        latent_dim=options.latent_dim,
        rope_dim=options.rope_dim or 0,
        sparse_mla=options.sparse_mla,
        group=group,
    )
