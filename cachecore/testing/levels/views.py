"""Views: right shape, dtype and strides, and what is written through them is in the pool."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from random import Random
from typing import Any

from cachecore.backend import CacheAllocation
from cachecore.errors import CacheCoreError
from cachecore.plan import BlockCachePlan
from cachecore.schema import CacheTensorSpec
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_same, dump, fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.memory import allocated
from cachecore.testing.places import Places
from cachecore.testing.samples import BLOCK_CASES, MOVED_CASES, BlockCase
from cachecore.testing.subject import Subject

__all__ = ["CHECKS", "write_rows"]

_NUM_BLOCKS = 3
_COPY = "flatten(), reshape() or contiguous() of a strided view returns a copy: the in-place write reaches nothing"


@check("views", "shape-dtype-strides", MOVED_CASES)
def shape_dtype_strides(subject: Subject, case: BlockCase) -> str | None:
    """Row views and whole views have the spec's shape and dtype, and the layout's strides."""
    plan, adapter = subject.plan(case), subject.adapter()
    allocation = subject.allocate(plan, _NUM_BLOCKS)
    try:
        for index, spec in enumerate(plan.specs):
            for row in range(spec.num_rows):
                view = subject.backend.row_view(allocation, index, spec, row)
                _check_view(adapter, plan, allocation, view, index, f"cache {spec.name!r} row {row}", rows=None)
            whole = subject.backend.view(allocation, index, spec)
            evenly = plan.layout.tensor_strides(index, allocation.num_entries) is not None
            if whole is not None:
                _check_view(adapter, plan, allocation, whole, index, f"cache {spec.name!r}", rows=spec.num_rows)
            elif evenly:
                raise Fault(
                    f"view() of cache {spec.name!r}", expected="a tensor: its rows are equally spaced", found="None"
                )
    finally:
        subject.backend.free(allocation)
    return None


def _check_view(
    adapter: Any,
    plan: BlockCachePlan,
    allocation: CacheAllocation[Any],
    view: Any,
    index: int,
    who: str,
    *,
    rows: int | None,
) -> None:
    spec, layout = plan.specs[index], plan.layout
    pages = () if layout.pages_per_entry == 1 else (layout.pages_per_entry,)
    shape = (*(() if rows is None else (rows,)), allocation.num_entries, *pages, *spec.shape)
    if adapter.shape(view) != shape:
        what = "(rows, entries, *shape)" if rows is not None else "(entries, *shape)"
        raise Fault(
            f"shape of {who}",
            expected=f"{shape}, which is {what}",
            found=adapter.shape(view),
            cause="kernel pages and blocks mixed up",
        )
    dtype, itemsize = adapter.dtype(view), adapter.itemsize(view)
    if dtype not in (None, spec.dtype) or itemsize != spec.desc.itemsize:
        raise Fault(
            f"dtype of {who}",
            expected=f"{spec.dtype}, {spec.desc.itemsize} bytes an element",
            found=f"{dtype or 'items'} of {itemsize}",
            cause="the pool's bytes handed out without view(dtype), or another spec's dtype",
        )
    if not prod(shape):
        return
    place = layout.slices[index][0]
    inner = layout.pools[place.pool].inner
    page_nbytes = place.nbytes // layout.pages_per_entry
    dense = [spec.desc.itemsize * prod(spec.shape[at + 1 :]) for at in range(len(spec.shape))]
    strides = [inner, *(() if not pages else (page_nbytes,)), *dense]
    found = list(adapter.strides(view))[0 if rows is None else 1 :]
    for axis, (expected, step) in enumerate(zip(strides, found, strict=True)):
        if expected != step and shape[axis + (rows is not None)] > 1:
            raise Fault(
                f"strides of {who}, in bytes, from the entry axis on",
                expected=tuple(strides),
                found=tuple(found),
                cause="entries taken to be dense: padding and neighbouring specs are skipped by the stride",
            )


@check("views", "write-reaches-the-pool", MOVED_CASES)
def write_reaches_the_pool(subject: Subject, case: BlockCase) -> str | None:
    """What is written through a row's view is in the pool where the layout says, and nothing else changes."""
    adapter = subject.adapter()
    modes = adapter.modes()
    for made, make in modes.items():
        for used, use in modes.items():
            with make():
                plan = subject.plan(case)
                context = allocated(subject, plan, _NUM_BLOCKS)
                allocation = context.__enter__()
            try:
                with use():
                    write_rows(subject, plan, allocation, f" (allocated {made}, written {used})" if made else "")
            finally:
                context.__exit__(None, None, None)
    return None


def write_rows(
    subject: Subject,
    plan: BlockCachePlan,
    allocation: CacheAllocation[Any],
    when: str = "",
    *,
    views: Mapping[tuple[int, int], Any] | None = None,
    cause: str = _COPY,
) -> None:
    """Write the first blocks of every row through its view, by ``(spec, row)`` or made now, and compare all bytes."""
    adapter, backend = subject.adapter(), subject.backend
    places = Places(plan.layout, plan.specs, allocation.num_entries, plan.pages_per_unit)
    expected = [bytearray(data) for data in fill(backend, allocation, 6)]
    for index, spec in enumerate(plan.specs):
        for row in range(spec.num_rows if spec.page_nbytes else 0):
            view = views.get((index, row)) if views else backend.row_view(allocation, index, spec, row)
            for block in range(_NUM_BLOCKS):
                for entry, data in _entries(plan, spec, row, block, places):
                    adapter.put(view, entry, data)
            _expect(places, index, row, plan, spec, expected)
            what = f"bytes of the pool after writing cache {spec.name!r} row {row} through its view{when}"
            check_same(what, places, expected, dump(backend, allocation), cause)


def _entries(
    plan: BlockCachePlan, spec: CacheTensorSpec, row: int, block: int, places: Places
) -> list[tuple[int, bytes]]:
    """``(entry, dense bytes)`` of one block of one row."""
    per_block = places.entries_per_block
    pages = [_pattern(spec, row, block, page) for page in range(plan.pages_per_unit)]
    if per_block == 1:
        return [(block, b"".join(pages))]
    return [(block * per_block + page, data) for page, data in enumerate(pages)]


def _expect(
    places: Places, index: int, row: int, plan: BlockCachePlan, spec: CacheTensorSpec, expected: list[bytearray]
) -> None:
    for block in range(_NUM_BLOCKS):
        for page in range(plan.pages_per_unit):
            at = places.payload(index, row, block, page)
            expected[at.pool][at.start : at.start + at.nbytes] = _pattern(spec, row, block, page)


def _pattern(spec: CacheTensorSpec, row: int, block: int, page: int) -> bytes:
    """Bytes that are an ordinary number in every dtype: no NaN, which a device may rewrite."""
    random = Random(f"{spec.name}/{row}/{block}/{page}")
    return bytes(random.randrange(0x10, 0x3C) for _ in range(spec.page_nbytes))


@check("views", "read-shows-the-pool", MOVED_CASES)
def read_shows_the_pool(subject: Subject, case: BlockCase) -> str | None:
    """What stands in the pool is seen through views that were made before it was written."""
    plan, adapter = subject.plan(case), subject.adapter()
    with allocated(subject, plan, _NUM_BLOCKS) as allocation:
        places = Places(plan.layout, plan.specs, allocation.num_entries, plan.pages_per_unit)
        views = {
            (index, row): subject.backend.row_view(allocation, index, spec, row)
            for index, spec in enumerate(plan.specs)
            for row in range(spec.num_rows if spec.page_nbytes else 0)
        }
        contents = fill(subject.backend, allocation, 7)
        for (index, row), view in views.items():
            entry = allocation.num_entries - 1
            block = entry // places.entries_per_block
            first = (entry % places.entries_per_block) * plan.layout.pages_per_entry
            pages = [places.payload(index, row, block, first + at) for at in range(plan.layout.pages_per_entry)]
            wanted = b"".join(contents[at.pool][at.start : at.start + at.nbytes] for at in pages)
            if adapter.get(view, entry) != wanted:
                raise Fault(
                    f"entry {entry} of cache {plan.specs[index].name!r} row {row} read through its view",
                    expected=f"{wanted[:8].hex()}...",
                    found=f"{adapter.get(view, entry)[:8].hex()}...",
                    at=places.describe(pages[0].pool, pages[0].start),
                    cause=f"the view stands elsewhere, or is a copy: {_COPY}",
                )
    return None


@check("views", "no-such-row")
def no_such_row(subject: Subject) -> str | None:
    """A row that does not exist is refused, not taken from the other end or from a neighbour."""
    plan = subject.plan(BLOCK_CASES[0])
    allocation = subject.allocate(plan, _NUM_BLOCKS)
    try:
        spec = plan.specs[0]
        try:
            subject.backend.row_view(allocation, 0, spec, spec.num_rows)
        except (CacheCoreError, IndexError):
            return None
    finally:
        subject.backend.free(allocation)
    raise Fault(
        f"row_view() of row {plan.specs[0].num_rows} of {plan.specs[0].num_rows}",
        expected="an IndexError",
        found="a view",
    )


CHECKS: tuple[Check, ...] = (shape_dtype_strides, write_reaches_the_pool, read_shows_the_pool, no_such_row)
