"""Why: the reasons behind a plan's choices, read off its bytes and its specs.

A plan records what was asked (specs, geometry) and what was chosen (layouts). For the standard policy
the rule that led from one to the other is known and told; for another policy its name stands for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from types import MappingProxyType

from cachecore.group_plan import GroupPlan
from cachecore.layout import NATIVE_ALIGNMENT, CacheLayout, PoolSpec
from cachecore.nbytes import format_nbytes
from cachecore.occupancy import Held
from cachecore.plan import BlockCachePlan
from cachecore.policy import StandardLayoutPolicy
from cachecore.schema import CacheTensorSpec

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "plain": "elements as the model computes them",
        "int8_asym": "one 8-bit code an element; scale and zero point of each token and head stand in quant_0, quant_1",
        "int4_asym": "two 4-bit codes a byte; scale and zero point of each token and head stand in quant_0, quant_1",
        "turbo_k": "rotated and normalised, 3-bit index and sign, two elements a byte; norms stand in quant_0",
        "turbo_v": "rotated and normalised, 2-bit index, four elements a byte; norms stand in quant_1",
        "fp8": "8-bit floats e4m3, one scale a tensor kept by the attention module",
        "fp8_e5m2": "8-bit floats e5m2, one scale a tensor kept by the attention module",
        "fp8_ds_mla": "a token's fp8 latent, its float32 scales (one for 128 elements) and its 16-bit rope in a row",
        "dsa_index": "all fp8 keys of a page, then one float32 scale a token",
        "int8_asym_scales": "scale and zero point of each token and head",
        "int4_asym_scales": "scale and zero point of each token and head",
        "turbo_scales": "norms of each token and head",
    }
)
"""What the bytes of a known format mean."""


def is_standard(plan: GroupPlan) -> bool:
    """Whether the core's own policy laid this plan out."""
    return (plan.policy, plan.policy_version) == (StandardLayoutPolicy.name, StandardLayoutPolicy.version)


def geometry_reason(plan: BlockCachePlan) -> str:
    """What the block sizes amount to."""
    geometry = plan.geometry
    if geometry.pages_per_block == 1:
        return f"the scheduler's block is one kernel page of {_tokens(geometry.page_size)}"
    return (
        f"the scheduler hands out blocks of {_tokens(geometry.logical_block_size)}, kernels index pages of "
        f"{geometry.page_size}: {geometry.pages_per_block} pages a block"
    )


def window_reason(plan: BlockCachePlan) -> str:
    """What a sequence keeps in this group."""
    window = plan.group.window
    if window is None:
        return "a sequence keeps all its blocks"
    return f"a sequence keeps its last {_tokens(window - 1)} and those in flight; blocks behind them are released"


def layout_reason(plan: GroupPlan, layout: CacheLayout, *, host: bool) -> str:
    """Why a tier has this layout."""
    entry = f"a whole block, each row's {layout.pages_per_entry} pages one after another"
    if layout.pages_per_entry == 1:
        entry = "one kernel page" if plan.pages_per_unit > 1 else f"one {plan.unit}"
    return f"{_layout_choice(plan, layout, host)}; an entry is {entry}"


def _layout_choice(plan: GroupPlan, layout: CacheLayout, host: bool) -> str:
    if host and layout == plan.layout:
        return "the device's layout, so whole entries move without being taken apart"
    asked = f", as policy {plan.policy!r} version {plan.policy_version} chose"
    if host:
        asked = ""
    elif is_standard(plan):
        asked = ", as LayoutHints.one_run_per_block asked"
    if layout.kind == "block-major":
        like = ", rows in the order they have on the device" if host else ""
        return f"a {plan.unit} is one contiguous run{asked}: one transfer moves it{like}"
    if layout.kind == "page-major":
        return f"a {plan.unit} is one contiguous run{asked}: one transfer moves it, and kernels find pages at a stride"
    if not is_standard(plan):
        return f"chosen by policy {plan.policy!r} version {plan.policy_version}"
    if layout.kind.startswith("composite"):
        return "the specs fall into runs of different kinds; each run is laid out by itself, in spec order"
    if layout.kind == "packed" and sum(spec.page_nbytes > 0 for spec in plan.specs) == 1:
        return "one cache has bytes, standard K/V found by layer, and has one pool to itself"
    return _KINDS.get(layout.kind, f"chosen by policy {plan.policy!r}")


_KINDS = MappingProxyType(
    {
        "packed": "all caches are standard K/V with equal row counts, so they stand side by side in one pool",
        "row": "all caches are operators' own and accept strides, so each has a pool of padded rows",
        "packed-state": "a slot is one entry that holds every row of every state",
        "contiguous-state": "a pool of its own for every state, [rows, slots, *shape] dense",
        "contiguous": "all caches asked for dense rows (per_row_contiguous), so each has a pool without padding",
    }
)


def placement(plan: GroupPlan, layout: CacheLayout, index: int, *, host: bool) -> tuple[str, str]:
    """How one spec stands in a layout, and why it came to stand so."""
    spec, rows = plan.specs[index], layout.slices[index]
    if not spec.page_nbytes:
        return "empty", f"shape {spec.shape} holds no bytes, so it owns none; its view is an empty tensor"
    pools = {place.pool for place in rows}
    number = rows[0].pool
    pool = layout.pools[number]
    others = [
        other.name
        for other, places in zip(plan.specs, layout.slices, strict=True)
        if other is not spec and any(place.pool == number and place.nbytes for place in places)
    ]
    spread = len({place.outer for place in rows}) == len(rows) and len({place.offset for place in rows}) == 1
    if len(pools) > 1:
        return "scattered", _chosen(plan, f"its rows stand in {len(pools)} pools")
    if layout.kind in ("block-major", "page-major", "packed-state") or not spread:
        rows_told = "its row stands" if spec.num_rows == 1 else f"all {spec.num_rows} rows stand"
        several = layout.pages_per_entry < plan.pages_per_unit
        entry = "the entry of a kernel page" if several else f"the one entry of a {plan.unit}"
        what = f"{rows_told} in {entry}" + (f", beside {_listed(others)}" if others else "")
        kind = layout.kind if layout.kind in ("page-major", "packed-state") else "block-major"
        return kind, what if host else _chosen(plan, what)
    if spec.per_row_contiguous and not host:
        return "contiguous", "per_row_contiguous was asked: its kernel needs [rows, pages, *shape] dense, so no padding"
    if others or ("packed" in layout.kind and spec.consumer_rows is None):
        return "packed", _chosen(plan, _packed(plan, spec, others))
    if spec.consumer_rows is not None:
        found = "an operator's own cache, found by consumer row; strides are accepted, so rows are padded to "
        return "row", _chosen(plan, f"{found}alignment {pool.alignment} in a pool of its own")
    return "row", _chosen(plan, "a pool of its own, one row an outer index")


def _packed(plan: GroupPlan, spec: CacheTensorSpec, others: list[str]) -> str:
    if others:
        return f"standard K/V, found by layer, with as many rows as {_listed(others)}: side by side in one pool"
    counts = sorted({other.num_rows for other in plan.specs if other.consumer_rows is None} - {spec.num_rows})
    unlike = f"; its neighbours have {', '.join(map(str, counts))} rows, it has {spec.num_rows}" if counts else ""
    return f"standard K/V, found by layer, alone in its pool{unlike}"


def _chosen(plan: GroupPlan, what: str) -> str:
    return what if is_standard(plan) else f"{what} (chosen by policy {plan.policy!r} version {plan.policy_version})"


def base_alignment_reason(pool: PoolSpec, asked: int) -> str:
    """Why a pool's start is aligned as it is. ``asked`` is the strictest alignment of its caches."""
    if pool.base_alignment == NATIVE_ALIGNMENT:
        return "the default, which every device allocator gives without taking more"
    why = "the strictest alignment of its caches" if pool.base_alignment == asked else "LayoutHints.base_alignment"
    if pool.base_alignment < NATIVE_ALIGNMENT or not pool.entry_nbytes:
        return why
    return f"{why}; {format_nbytes(pool.base_alignment)} more are taken once, so that the start can be moved there"


def alignment_reason(pool: PoolSpec, specs: list[CacheTensorSpec]) -> str:
    """Why first rows and entries are aligned as they are."""
    strictest = max((spec.alignment for spec in specs), default=1)
    if pool.alignment == 1:
        return "dense rows follow one another, aligned to their elements and no more"
    if pool.alignment < strictest:
        return f"one {pool.alignment}-byte word, the widest access of a kernel that gathers; caches asked for more"
    asking = _listed([spec.name for spec in specs if spec.alignment == pool.alignment])
    return f"the strictest alignment asked for, by {asking}" if asking else "chosen by the policy"


def gap_reason(
    pool: PoolSpec,
    specs: list[CacheTensorSpec],
    before: CacheTensorSpec | None,
    after: CacheTensorSpec | None,
    gap: Held,
) -> str:
    """Why ``gap`` lies between the rows of ``before`` and ``after`` (None: the entry's start or end)."""
    if after is not None:
        align = min(after.alignment, pool.alignment)
        own = before.alignment if before is not None else 1
        if _round_up(gap.offset, align) == gap.end:
            capped = "" if align == after.alignment else f" of {after.alignment} as far as this pool keeps it"
            return f"{after.name} starts at a multiple of {align}, its alignment{capped}"
        if before is not None and _round_up(_round_up(gap.offset, own), align) == gap.end:
            filled = f"{before.name} is filled up to a multiple of {own}, its alignment"
            return f"{filled}, and {after.name} starts at one of {align}"
        begins_again = before is not None and specs.index(after) <= specs.index(before)
        if begins_again and _round_up(gap.offset, pool.alignment) == gap.end:
            return f"{after.name} begins the caches' next rows, which start together at a multiple of {pool.alignment}"
        return f"chosen by the policy; the alignment {align} of {after.name} alone would need less"
    if before is None:
        return "no row stands at this outer index"
    step = lcm(pool.alignment, pool.stride_multiple)
    if _round_up(gap.offset, step) != gap.end:
        return f"chosen by the policy; entries a multiple of {step} bytes apart would need less"
    if pool.stride_multiple == 1:
        return f"the next entry starts at a multiple of {pool.alignment}: {alignment_reason(pool, specs)}"
    asking = _listed([spec.name for spec in specs if spec.page_stride_multiple > 1])
    return (
        f"entries stand a multiple of {step} bytes apart: page_stride_multiple {pool.stride_multiple} (asked for by "
        f"{asking}) together with alignment {pool.alignment}"
    )


def shard_reason(spec: CacheTensorSpec) -> str:
    """Which share of the model's heads a rank holds."""
    shard = spec.shard
    if shard.replicated:
        return "replicated: every rank holds the whole payload"
    heads = f"head {shard.first}" if shard.count == 1 else f"heads {shard.first} to {shard.first + shard.count - 1}"
    if shard.count == shard.total:
        return "the only head" if shard.total == 1 else f"all {shard.total} heads"
    return f"{heads} of {shard.total}" + (f", replica {shard.replica}" if shard.replica else "")


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _listed(names: list[str]) -> str:
    """The names, each once, as a list for people."""
    unique = list(dict.fromkeys(names))
    if len(unique) > 4:
        unique = [*unique[:3], f"{len(unique) - 3} more"]
    return " and ".join(filter(None, [", ".join(unique[:-1]), unique[-1]])) if unique else ""


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
