"""Block copies: bit-exact against the kit's own arithmetic, and every other byte unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cachecore.blocks import BlockPairs
from cachecore.engine import CacheEngine
from cachecore.layout_kinds import contiguous_layout, packed_layout
from cachecore.plan import BlockCachePlan, GroupSpec
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_copy, check_same, dump, fill
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.places import Places
from cachecore.testing.samples import BLOCK_CASES, MOVED_CASES, BlockCase, block_case
from cachecore.testing.subject import Subject
from cachecore.transfer import resolve_copy

__all__ = ["CHECKS", "copy_batches", "places_of"]

Pairs = Sequence[tuple[int, int]]
_NUM_BLOCKS = 11
_MANY = [(3, 0), (3, 1), (10, 2), (5, 9), (4, 7), (6, 8)]
"""A fork, neighbours in both orders, the last block, and holes."""


def places_of(plan: Any, allocation: Any) -> Places:
    """The kit's arithmetic over one tier."""
    return Places(allocation.layout, plan.specs, allocation.num_entries, plan.pages_per_unit)


def _copy(subject: Subject, plan: BlockCachePlan, num_blocks: int, batches: Sequence[Pairs]) -> str:
    """Copy each batch in an engine of its own; the way that the bytes took."""
    subject.need("byte_addressable")
    with subject.open(plan, num_blocks) as engine:
        with subject.watch(engine, "copy"):
            copy_batches(subject, engine, batches)
        return engine.stats().groups[0].copies[0].path


def copy_batches(subject: Subject, engine: CacheEngine[Any], batches: Sequence[Pairs], when: str = "") -> None:
    """Copy each batch on the device, and compare the whole allocation after each."""
    allocation = engine.allocation()
    places = places_of(engine.plans.blocks[0], allocation)
    before = fill(subject.backend, allocation, 8)
    for pairs in batches:
        work = engine.copy_blocks(pairs)
        work.synchronize()
        if not work.done():
            raise Fault(f"done() after synchronize(){when}", expected=True, found=False)
        after = dump(subject.backend, allocation)
        check_copy(f"copy of {len(pairs)} blocks{when}", places, places, before, before, after, pairs)
        before = after


@check("copy", "many-pairs", MOVED_CASES)
def many_pairs(subject: Subject, case: BlockCase) -> str | None:
    """Several pairs: forks, neighbours in both orders, the first and the last block."""
    return _copy(subject, subject.plan(case), _NUM_BLOCKS, [_MANY])


@check("copy", "one-pair", MOVED_CASES)
def one_pair(subject: Subject, case: BlockCase) -> str | None:
    """One pair at a time, up and down, and on top of what an earlier copy left."""
    return _copy(subject, subject.plan(case), _NUM_BLOCKS, [[(0, 10)], [(10, 4)], [(1, 0)], [(4, 5)]])


@check("copy", "no-pairs", BLOCK_CASES)
def no_pairs(subject: Subject, case: BlockCase) -> str | None:
    """An empty list does nothing."""
    return _copy(subject, subject.plan(case), _NUM_BLOCKS, [[]])


@dataclass(frozen=True, slots=True)
class Size:
    """A copy that is large in one respect."""

    name: str
    rows: int
    row_nbytes: int
    num_blocks: int
    num_pairs: int


@check(
    "copy",
    "large",
    (
        Size("65600-pairs", 1, 16, 65_600 + 64, 65_600),
        Size("66000-pairs-of-12-bytes", 2, 12, 66_000 + 3, 66_000),
        Size("8640-runs", 72, 132, 240, 120),
        Size("long-rows", 2, (1 << 20) + 132, 8, 4),
    ),
)
def large(subject: Subject, case: Size) -> str | None:
    """More pairs than a grid axis holds (65,535), more runs than a descriptor table (8,192), rows over a MiB."""
    ids = tuple(range(case.rows))
    spec = CacheTensorSpec(
        name="large",
        shape=(case.row_nbytes,),
        dtype="uint8",
        row_ids=ids,
        consumer_rows=ids,
        per_row_contiguous=True,
        alignment=1,
    )
    plan = subject.plan(BlockCase(case.name, lambda page: (spec,)))
    num_sources = case.num_blocks - case.num_pairs
    pairs = [(number % num_sources, num_sources + number) for number in range(case.num_pairs)]
    if plan.reserved_nbytes(case.num_blocks) * 3 > subject.backend.memory(subject.device).free_nbytes:
        raise Skipped(f"{plan.reserved_nbytes(case.num_blocks)} bytes are not free")
    return _copy(subject, plan, case.num_blocks, [pairs])


@check("copy", "forms-of-pairs")
def input_forms(subject: Subject) -> str | None:
    """Ranges, mappings and tuples name the same pairs."""
    subject.need("byte_addressable")
    plan = subject.plan(BLOCK_CASES[0])
    forms: tuple[Any, ...] = (BlockPairs(range(3), range(5, 8)), {0: 5, 1: 6, 2: 7}, ((0, 5), (1, 6), (2, 7)))
    with subject.open(plan, _NUM_BLOCKS) as engine:
        places = places_of(plan, engine.allocation())
        for form in forms:
            before = fill(subject.backend, engine.allocation(), 9)
            engine.copy_blocks(form).synchronize()
            after = dump(subject.backend, engine.allocation())
            check_copy(
                f"copy of {type(form).__name__}", places, places, before, before, after, [(0, 5), (1, 6), (2, 7)]
            )
    return None


@check("copy", "between-layouts")
def between_layouts(subject: Subject) -> str | None:
    """Two allocations of one device, laid out otherwise: the segments decide, not the layout's kind."""
    subject.need("byte_addressable")
    plan, backend = subject.plan(block_case("kv-2-pages")), subject.backend
    entries = plan.num_entries(_NUM_BLOCKS)
    if plan.layout.pages_per_entry != 1:
        raise Skipped("the policy's entries are whole blocks")
    src = backend.allocate(packed_layout(plan.specs), entries, subject.device)
    dst = backend.allocate(contiguous_layout(plan.specs), entries, subject.device)
    try:
        source, target = fill(backend, src, 10), fill(backend, dst, 11)
        found = resolve_copy(subject.copies, plan, (backend, src), (backend, dst))
        subject.ways.add("between_layouts", found.record, found.copy.path)
        pairs = [(0, 0), (3, 2), (10, 7)]
        found.copy(BlockPairs.of(pairs)).synchronize()
        one, two = places_of(plan, src), places_of(plan, dst)
        check_copy("copy from packed to contiguous", one, two, source, target, dump(backend, dst), pairs)
        check_same("the source of a copy", one, source, dump(backend, src))
        return found.copy.path
    finally:
        backend.free(src)
        backend.free(dst)


_FAR_INNER, _FAR_ENTRIES = 1 << 16, 34_000
"""Two rows of 34,000 entries of 64 KiB: row 1 starts past 2**31 bytes, and ends past 2**32."""


@check("copy", "far-offsets")
def far_offsets(subject: Subject) -> str | None:
    """Blocks past 2**31 and 2**32 bytes, in memory that nothing else touches."""
    subject.need("byte_addressable")
    backend, adapter = subject.backend, subject.adapter()
    ids = (0, 1)
    spec = CacheTensorSpec(
        name="far", shape=(_FAR_INNER,), dtype="uint8", row_ids=ids, consumer_rows=ids, per_row_contiguous=True
    )
    layout = contiguous_layout((spec,))
    nbytes = layout.nbytes(_FAR_ENTRIES)
    subject_free = backend.memory(subject.device).free_nbytes
    lazily = subject.device.type in ("cpu", "null")
    if not lazily and nbytes + (1 << 30) > subject_free:
        raise Skipped(f"{nbytes} bytes are needed, {subject_free} are free on {subject.device}")
    adapter.release(subject.device)
    try:
        buffer = adapter.buffer(nbytes, subject.device)
    except (OSError, MemoryError, RuntimeError) as error:
        raise Skipped(f"{nbytes} bytes of address space cannot be had: {error}") from error
    allocation = backend.adopt(buffer, layout, _FAR_ENTRIES)
    plan = BlockCachePlan(
        GroupSpec("far", BlockCacheGeometry(4)), (spec,), layout, layout, subject.policy.name, subject.policy.version
    )
    try:
        return _far_copies(subject, plan, allocation)
    finally:
        backend.free(allocation)


def _far_copies(subject: Subject, plan: BlockCachePlan, allocation: Any) -> str:
    backend, last = subject.backend, _FAR_ENTRIES - 1
    found = resolve_copy(subject.copies, plan, (backend, allocation), (backend, allocation))
    pairs = [(1, last), (last - 2, 3)]
    wrapped = 2 * _FAR_ENTRIES - 1 - (1 << 32) // _FAR_INNER  # where 32 bits would put the last block of row 1
    watched = sorted({block for pair in pairs for block in pair} | {last - 1, 2, wrapped})
    written = {}
    for row in (0, 1):
        for block in watched:
            at = (row * _FAR_ENTRIES + block) * _FAR_INNER
            written[row, block] = bytes([1 + row * 100 + watched.index(block)]) * _FAR_INNER
            backend.write(allocation, 0, at, written[row, block])
    found.copy(BlockPairs.of(pairs)).synchronize()
    copied = {dst: src for src, dst in pairs}
    for row in (0, 1):
        for block in watched:
            at = (row * _FAR_ENTRIES + block) * _FAR_INNER
            wanted, got = written[row, copied.get(block, block)], backend.read(allocation, 0, at, _FAR_INNER)
            if wanted != got:
                raise Fault(
                    f"block {block} of row {row} after copying {pairs}",
                    expected=f"{wanted[0]:#04x}",
                    found=f"{got[0]:#04x}",
                    at=f"byte {at} of pool 0, past {'2**32' if at >> 32 else '2**31' if at >> 31 else 'nothing'}",
                    cause="offsets computed in 32 bits wrap around; block * stride needs 64-bit integers",
                )
    return found.copy.path


CHECKS: tuple[Check, ...] = (many_pairs, one_pair, no_pairs, large, input_forms, between_layouts, far_offsets)
