"""Copy and swap resolution: two layouts into byte segments, ranked records into one primitive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cachecore.asking import asked, shown
from cachecore.backend import COMPLETED, CacheAllocation, CacheBackend, Completion
from cachecore.blocks import BlockPairs
from cachecore.copying import BlockCacheCopy, BlockCopyInfo, CopyContext, CopySegment, CopySide
from cachecore.errors import PluginError
from cachecore.group_plan import GroupPlan
from cachecore.layout import CacheLayout
from cachecore.probing import capabilities_of, probe_copy

__all__ = ["ByteCopy", "ResolvedCopy", "block_segments", "build_copy", "resolve_copy", "row_segments"]


def block_segments(
    src: CacheLayout, num_src_entries: int, dst: CacheLayout, num_dst_entries: int, pages_per_block: int
) -> tuple[CopySegment, ...]:
    """The runs of bytes that every block has on both sides, as few and as long as the layouts allow.

    Between equal layouts whole entries move, padding included; between others each row's bytes.
    """
    if src == dst:
        return tuple(_whole_entries(src, num_src_entries, num_dst_entries, pages_per_block))
    rows = ((index, row) for index, places in enumerate(src.slices) for row in range(len(places)))
    return row_segments(src, num_src_entries, dst, num_dst_entries, pages_per_block, rows)


def row_segments(
    src: CacheLayout,
    num_src_entries: int,
    dst: CacheLayout,
    num_dst_entries: int,
    pages_per_block: int,
    rows: Iterable[tuple[int, int]],
) -> tuple[CopySegment, ...]:
    """As :func:`block_segments` for some rows, ``(spec, row)`` each: their bytes alone, neighbours as one run."""
    segments = []
    for index, row in rows:
        nbytes = src.slices[index][row].nbytes // src.pages_per_entry
        if nbytes:
            one = _side(src, index, row, num_src_entries, pages_per_block)
            two = _side(dst, index, row, num_dst_entries, pages_per_block)
            segments.append(CopySegment(*one, *two, nbytes, pages_per_block))
    segments.sort()
    return tuple(_merged(segments))


def _whole_entries(layout: CacheLayout, num_src: int, num_dst: int, pages_per_block: int) -> list[CopySegment]:
    entries_per_block = pages_per_block // layout.pages_per_entry
    return [
        CopySegment(
            *(pool, outer * num_src * spec.inner, entries_per_block * spec.inner, spec.inner),
            *(pool, outer * num_dst * spec.inner, entries_per_block * spec.inner, spec.inner),
            entries_per_block * spec.inner,
            1,
        )
        for pool, spec in enumerate(layout.pools)
        for outer in range(spec.outer)
        if spec.inner
    ]


def _side(
    layout: CacheLayout, index: int, row: int, num_entries: int, pages_per_block: int
) -> tuple[int, int, int, int]:
    at = layout.row_strides(index, row, num_entries)
    entries_per_block = pages_per_block // layout.pages_per_entry
    return at.pool, at.start, at.entry * entries_per_block, at.entry if layout.pages_per_entry == 1 else at.page


def _merged(segments: Sequence[CopySegment]) -> list[CopySegment]:
    merged: list[CopySegment] = []
    for segment in map(_join_pages, segments):
        if merged and _adjoins(merged[-1], segment):
            merged[-1] = _join_pages(merged[-1]._replace(nbytes=merged[-1].nbytes + segment.nbytes))
        else:
            merged.append(segment)
    return merged


def _join_pages(segment: CopySegment) -> CopySegment:
    if segment.num_pages > 1 and segment.src_page_stride == segment.dst_page_stride == segment.nbytes:
        return segment._replace(nbytes=segment.nbytes * segment.num_pages, num_pages=1)
    return segment


def _adjoins(one: CopySegment, two: CopySegment) -> bool:
    """Whether ``two`` goes on where ``one`` ends, on both sides; runs of one pool have one block stride."""
    return (
        (one.src_pool, one.dst_pool, one.num_pages) == (two.src_pool, two.dst_pool, two.num_pages)
        and one.src_start + one.nbytes == two.src_start
        and one.dst_start + one.nbytes == two.dst_start
        and (
            one.num_pages == 1
            or (one.src_page_stride, one.dst_page_stride) == (two.src_page_stride, two.dst_page_stride)
        )
    )


class ByteCopy(BlockCacheCopy):
    """The last resort and the oracle: byte by byte through the backends' ``read`` and ``write``."""

    path = "bytes"

    def __init__(self, context: CopyContext) -> None:
        self._context = context

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy on the host; blocks until done."""
        for completion in after:
            completion.synchronize()
        context = self._context
        read, write = context.src_backend.read, context.dst_backend.write
        for src, dst in pairs:
            for segment in context.segments:
                for page in range(segment.num_pages):
                    at = segment.src_start + src * segment.src_block_stride + page * segment.src_page_stride
                    to = segment.dst_start + dst * segment.dst_block_stride + page * segment.dst_page_stride
                    write(context.dst, segment.dst_pool, to, read(context.src, segment.src_pool, at, segment.nbytes))
        return COMPLETED


@dataclass(frozen=True, slots=True)
class ResolvedCopy:
    """A built primitive, the record it came from, and why each better-ranked record was passed over."""

    copy: BlockCacheCopy
    record: str
    block_nbytes: int
    passed_over: tuple[tuple[str, str], ...]
    fallback: bool = False


def resolve_copy(
    records: Sequence[BlockCopyInfo],
    plan: GroupPlan,
    src: tuple[CacheBackend[Any], CacheAllocation[Any]],
    dst: tuple[CacheBackend[Any], CacheAllocation[Any]],
) -> ResolvedCopy:
    """Build the copy of whole blocks or slots between two allocations of one plan; errors as :func:`build_copy`."""
    pages = plan.pages_per_unit
    (src_backend, source), (dst_backend, target) = src, dst
    context = CopyContext(
        src_backend,
        source,
        dst_backend,
        target,
        source.num_entries * source.layout.pages_per_entry // pages,
        target.num_entries * target.layout.pages_per_entry // pages,
        block_segments(source.layout, source.num_entries, target.layout, target.num_entries, pages),
        plan.name,
    )
    return build_copy(records, context)


def build_copy(records: Sequence[BlockCopyInfo], context: CopyContext) -> ResolvedCopy:
    """Build the best record that serves this pair of allocations; bytes through the host if none does.

    Raises
    ------
    PluginError
        When two records of one priority serve (nothing says which is meant), when the one that serves
        cannot be built, or when none does and the backend's memory is not byte-addressable.
    """
    sides = _side_of(context.src_backend, context.src), _side_of(context.dst_backend, context.dst)
    passed_over: list[tuple[str, str]] = []
    serving: list[BlockCopyInfo] = []
    for record in sorted(records, key=lambda record: (-record.priority, record.name)):
        if serving and record.priority < serving[0].priority:
            break
        reason = probe_copy(record, *sides)
        if reason is None:
            serving.append(record)
        else:
            passed_over.append((record.name, reason))
    if len(serving) > 1:
        names = " and ".join(repr(record.name) for record in serving)
        raise PluginError(
            f"block copies {names} both serve {sides[0].memory_kind} to {sides[1].memory_kind} with priority "
            f"{serving[0].priority}; disable one with CACHECORE_DISABLE_COPIES"
        )
    if not serving:
        for backend in (context.src_backend, context.dst_backend):
            reason = capabilities_of(backend).get("byte_addressable")
            if reason is not None:
                reasons = "; ".join(f"{name}: {why}" for name, why in passed_over) or "none is installed"
                raise PluginError(
                    f"no block copy serves {sides[0].memory_kind} to {sides[1].memory_kind} ({reasons}), and backend "
                    f"{backend.name!r} cannot be copied byte by byte: {reason}"
                )
        return ResolvedCopy(ByteCopy(context), "bytes", context.block_nbytes, tuple(passed_over), fallback=True)
    record = serving[0]
    copy: Any = asked(f"block copy {record.name!r}: build()", partial(record.build, context))
    if not isinstance(copy, BlockCacheCopy):
        raise PluginError(f"block copy {record.name!r}: build() returned {shown(copy)}, which is no BlockCacheCopy")
    return ResolvedCopy(copy, record.name, context.block_nbytes, tuple(passed_over))


def _side_of(backend: CacheBackend[Any], allocation: CacheAllocation[Any]) -> CopySide:
    return CopySide(backend.name, allocation.memory_kind, allocation.device, allocation.layout)
