"""Swaps: to the host tier and back, bit-exact on both sides, whatever the two layouts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachecore.engine import CacheEngine
from cachecore.errors import LayoutError
from cachecore.layout_kinds import (
    block_major_layout,
    contiguous_layout,
    packed_layout,
    page_major_layout,
    row_layout,
)
from cachecore.plan import BlockCachePlan
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_copy, check_same, dump, fill
from cachecore.testing.faults import Skipped
from cachecore.testing.levels.copy import places_of
from cachecore.testing.samples import BLOCK_CASES, MOVED_CASES, BlockCase, block_case
from cachecore.testing.subject import Subject
from cachecore.transfer import block_segments

__all__ = ["CHECKS", "swap_both_ways"]

Pairs = Sequence[tuple[int, int]]
_NUM_BLOCKS, _NUM_HOST_BLOCKS = 9, 7
_OUT = [(8, 0), (0, 6), (4, 2), (5, 3), (7, 1)]
_IN = [(6, 3), (0, 1), (2, 8), (3, 7)]


def swap_and_compare(subject: Subject, plan: BlockCachePlan, out: Pairs = _OUT, back: Pairs = _IN) -> str:
    """Both ways in an engine of its own; the ways that the bytes took."""
    subject.need("byte_addressable")
    with subject.open(plan, _NUM_BLOCKS, _NUM_HOST_BLOCKS) as engine:
        with subject.watch(engine, "swap_out", "swap_in"):
            swap_both_ways(subject, engine, plan, out, back)
        return " and ".join(sorted({copy.path for copy in engine.stats().groups[0].copies[1:]}))


def swap_both_ways(
    subject: Subject, engine: CacheEngine[Any], plan: BlockCachePlan, out: Pairs, back: Pairs, when: str = ""
) -> None:
    """Swap out, compare both tiers; swap in elsewhere, compare both again."""
    backend, device, host = subject.backend, engine.allocation(), engine.allocation(host=True)
    here, there = places_of(plan, device), places_of(plan, host)
    on_device, on_host = fill(backend, device, 14), fill(backend, host, 15)
    engine.swap_out(out).synchronize()
    moved = dump(backend, host)
    check_copy(f"swap_out{when}", here, there, on_device, on_host, moved, out)
    wrong_way = "the swap went the other way: the direction was swapped"
    check_same(f"swap_out{when} changed the device tier", here, on_device, dump(backend, device), wrong_way)
    engine.swap_in(back).synchronize()
    check_copy(f"swap_in{when}", there, here, moved, on_device, dump(backend, device), back)
    check_same(f"swap_in{when} changed the host tier", there, moved, dump(backend, host), wrong_way)


@check("swap", "round-trip", MOVED_CASES)
def round_trip(subject: Subject, case: BlockCase) -> str | None:
    """Out to scattered host blocks, back to other device blocks."""
    return swap_and_compare(subject, subject.plan(case))


@check("swap", "all-in-order", MOVED_CASES)
def all_in_order(subject: Subject, case: BlockCase) -> str | None:
    """Neighbours on both sides, which a fast path joins."""
    order = [(block, block) for block in range(_NUM_HOST_BLOCKS)]
    return swap_and_compare(subject, subject.plan(case), order, order)


@dataclass(frozen=True, slots=True)
class HostKind:
    """A host layout that the policy did not choose."""

    name: str


_PAGE_KINDS = {
    "contiguous": contiguous_layout,
    "row": row_layout,
    "packed": packed_layout,
    "page-major": page_major_layout,
}


@check("swap", "other-host-layouts", tuple(map(HostKind, (*_PAGE_KINDS, "block-major"))))
def other_host_layouts(subject: Subject, case: HostKind) -> str | None:
    """Host tiers laid out in other ways: a copy follows its segments, or its probe says no."""
    plan = subject.plan(block_case("kv-and-index"))
    try:
        if case.name == "block-major":
            host = block_major_layout(plan.specs, plan.pages_per_unit)
        else:
            host = _PAGE_KINDS[case.name](plan.specs)
        other = replace(plan, host_layout=host)
    except LayoutError as error:
        raise Skipped(f"no {case.name} layout of these specs: {error}") from error
    return swap_and_compare(subject, other)


@check("swap", "many-runs")
def many_runs(subject: Subject) -> str | None:
    """More runs than a descriptor table of 8,192 holds."""
    subject.need("byte_addressable")
    plan, backend = subject.plan(block_case("kv-4-pages")), subject.backend
    runs = block_segments(
        plan.layout, plan.num_entries(1), plan.host_layout, plan.num_entries(1, host=True), plan.pages_per_unit
    )
    each = sum(run.num_pages for run in runs)
    num = 1 + 8192 // each
    pairs = [(block, num - 1 - block) for block in range(num)]
    with subject.open(plan, num, num) as engine:
        device, host = engine.allocation(), engine.allocation(host=True)
        on_device, on_host = fill(backend, device, 16), fill(backend, host, 17)
        engine.swap_out(pairs).synchronize()
        here, there = places_of(plan, device), places_of(plan, host)
        moved = dump(backend, host)
        check_copy("swap_out of many runs", here, there, on_device, on_host, moved, pairs)
        backend.zero(device, range(device.num_entries)).synchronize()
        zeros = [bytes(len(pool)) for pool in on_device]
        back = [(dst, src) for src, dst in pairs]
        engine.swap_in(back).synchronize()
        check_copy("swap_in of many runs", there, here, moved, zeros, dump(backend, device), back)
    return f"{num * each} runs"


@check("swap", "no-pairs")
def no_pairs(subject: Subject) -> str | None:
    """An empty list does nothing, either way."""
    return swap_and_compare(subject, subject.plan(BLOCK_CASES[0]), [], [])


CHECKS: tuple[Check, ...] = (round_trip, all_in_order, other_host_layouts, many_runs, no_pairs)
