"""Every tensor, pool, row, padding byte and choice of a plan, each with its reason. Touches no device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachecore.explain import reasons
from cachecore.explain.text import render
from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.occupancy import Held, occupancy
from cachecore.plan import BlockCachePlan
from cachecore.plan_set import CachePlanSet

__all__ = ["explain_plan", "explain_text"]


def explain_plan(plans: CachePlanSet, counts: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Explain ``plans`` as plain data that JSON can hold.

    ``counts`` (blocks or slots per group) adds what an allocation of so many takes. Within a pool,
    every row is listed once and gaps are listed for each range of outer indices that has them, so
    ``nbytes * num_outer`` over the gaps of a pool is its padding, exactly.
    """
    if not isinstance(plans, CachePlanSet):
        raise TypeError(f"plans must be a CachePlanSet, not {plans!r}")
    return {
        "format": "cachecore-explanation",
        "version": 1,
        "device": plans.device,
        "backend": plans.backend,
        "groups": [_group(plan, None if counts is None else counts[plan.name]) for plan in plans],
    }


def explain_text(plans: CachePlanSet, counts: Mapping[str, int] | None = None, *, width: int = 100) -> str:
    """Explain ``plans`` for a terminal of ``width`` columns; equally spaced rows are told as one."""
    return render(explain_plan(plans, counts), width)


def _group(plan: GroupPlan, num_units: int | None) -> dict[str, Any]:
    return {
        "group": plan.name,
        "kind": plan.kind,
        "unit": plan.unit,
        "num_units": num_units,
        **(_blocks(plan) if isinstance(plan, BlockCachePlan) else {}),
        "policy": {
            "name": plan.policy,
            "version": plan.policy_version,
            "why": "the policy of the planned backend; an engine whose backend has another one refuses this plan",
        },
        "caches": [_cache(plan, index) for index in range(len(plan.specs))],
        "device": _tier(plan, plan.layout, num_units, host=False),
        "host": _tier(plan, plan.host_layout, num_units, host=True),
    }


def _blocks(plan: BlockCachePlan) -> dict[str, Any]:
    geometry = plan.geometry
    return {
        "geometry": {
            "logical_block_size": geometry.logical_block_size,
            "kernel_block_size": geometry.page_size,
            "pages_per_block": geometry.pages_per_block,
            "why": reasons.geometry_reason(plan),
        },
        "window": plan.group.window,
        "window_why": reasons.window_reason(plan),
    }


def _cache(plan: GroupPlan, index: int) -> dict[str, Any]:
    spec = plan.specs[index]
    data = spec.to_json()
    device, device_why = reasons.placement(plan, plan.layout, index, host=False)
    host, host_why = reasons.placement(plan, plan.host_layout, index, host=True)
    return {
        **data,
        "num_rows": spec.num_rows,
        "found_by": "layer" if spec.consumer_rows is None else "consumer row",
        "format_why": reasons.FORMATS.get(spec.format, "as the operator that asked for it defines"),
        "shard_why": reasons.shard_reason(spec),
        "page_nbytes": spec.page_nbytes,
        "unit_nbytes": spec.page_nbytes * spec.num_rows * plan.pages_per_unit,
        "device": {"placement": device, "why": device_why},
        "host": {"placement": host, "why": host_why},
    }


def _tier(plan: GroupPlan, layout: CacheLayout, num_units: int | None, *, host: bool) -> dict[str, Any]:
    entries = plan.num_entries(1, host=host)
    unit = plan.unit_nbytes(host=host)
    held = occupancy(layout)
    data = {
        "layout": layout.kind,
        "why": reasons.layout_reason(plan, layout, host=host),
        "pages_per_entry": layout.pages_per_entry,
        "entries_per_unit": entries,
        "entry_nbytes": layout.entry_nbytes,
        "unit_nbytes": unit,
        "payload_nbytes": layout.payload_nbytes * entries,
        "padding_nbytes": layout.padding_nbytes * entries,
        "pools": [_pool(plan, layout, pool, held[pool], entries) for pool in range(len(layout.pools))],
    }
    if isinstance(plan, BlockCachePlan):
        tokens = plan.geometry.logical_block_size
        data["token_nbytes"] = unit // tokens if unit % tokens == 0 else unit / tokens
    if num_units is not None:
        data["nbytes"] = plan.nbytes(num_units, host=host)
        data["reserved_nbytes"] = plan.reserved_nbytes(num_units, host=host)
    return data


def _pool(
    plan: GroupPlan, layout: CacheLayout, number: int, held: tuple[tuple[Held, ...], ...], entries: int
) -> dict[str, Any]:
    pool = layout.pools[number]
    inside = sorted({one.spec for by_outer in held for one in by_outer if one.spec is not None})
    specs = [plan.specs[index] for index in inside]
    padding = sum(one.nbytes for by_outer in held for one in by_outer if one.spec is None)
    strictest = max((spec.alignment for spec in specs), default=1)
    return {
        "pool": number,
        "outer": pool.outer,
        "inner": pool.inner,
        "entry_nbytes": pool.entry_nbytes,
        "unit_nbytes": pool.entry_nbytes * entries,
        "padding_nbytes": padding * entries,
        "holds": list(dict.fromkeys(spec.name for spec in specs)),
        "base_alignment": pool.base_alignment,
        "base_alignment_why": reasons.base_alignment_reason(pool, strictest),
        "alignment": pool.alignment,
        "alignment_why": reasons.alignment_reason(pool, specs),
        "stride_multiple": pool.stride_multiple,
        "rows": _rows(plan, layout, number),
        "gaps": _gaps(plan, layout, number, held),
    }


def _rows(plan: GroupPlan, layout: CacheLayout, number: int) -> list[dict[str, Any]]:
    return [
        {
            "cache": spec.name,
            "spec": index,
            "row": row,
            "row_id": spec.row_ids[row],
            "consumer_row": None if spec.consumer_rows is None else spec.consumer_rows[row],
            "outer": place.outer,
            "offset": place.offset,
            "nbytes": place.nbytes,
        }
        for index, (spec, places) in enumerate(zip(plan.specs, layout.slices, strict=True))
        for row, place in enumerate(places)
        if place.pool == number
    ]


def _gaps(
    plan: GroupPlan, layout: CacheLayout, number: int, held: tuple[tuple[Held, ...], ...]
) -> list[dict[str, Any]]:
    """The gaps of a pool; those at one offset for one reason in neighbouring outer indices are one."""
    pool = layout.pools[number]
    specs = [plan.specs[index] for index in sorted({one.spec for row in held for one in row if one.spec is not None})]
    open_gaps: dict[tuple[int, int, str], dict[str, Any]] = {}
    gaps: list[dict[str, Any]] = []
    for outer, filled in enumerate(held):
        still_open: dict[tuple[int, int, str], dict[str, Any]] = {}
        for place, gap in enumerate(filled):
            if gap.spec is not None:
                continue
            before = filled[place - 1].spec if place else None
            after = filled[place + 1].spec if place + 1 < len(filled) else None
            why = reasons.gap_reason(
                pool,
                specs,
                None if before is None else plan.specs[before],
                None if after is None else plan.specs[after],
                gap,
            )
            key = (gap.offset, gap.nbytes, why)
            told = open_gaps.get(key)
            if told is None:
                told = {"first_outer": outer, "num_outer": 0, "offset": gap.offset, "nbytes": gap.nbytes, "why": why}
                gaps.append(told)
            told["num_outer"] += 1
            still_open[key] = told
        open_gaps = still_open
    return gaps
