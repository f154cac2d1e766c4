"""Wrong only where a block is one run of several kernel pages, or where the host tier is page-major."""

from __future__ import annotations

from conformance.mutant import Mutant, WrongCopy, byte_subject
from conformance.sim import SimCopy, sim_subject

from cachecore import ByteBackend
from cachecore.reference import ByteTensor


def is_run_of_pages(context):
    """Whether a block is one run of several entries, and goes as such."""
    src = context.src.layout
    return len(context.segments) == 1 and src.pools[0].outer == 1 and context.segments[0].nbytes > src.pools[0].inner


def first_page(context, one):
    """The segment as whoever takes an entry for a block has it."""
    return one._replace(nbytes=context.src.layout.pools[0].inner) if is_run_of_pages(context) else one


class FirstPageOfTheRun(WrongCopy):
    """Copies one entry a block."""

    def run(self, number, index, one, page, at, to):
        super().run(number, index, first_page(self.context, one), page, at, to)


class FirstPageOfTheSwappedRun(WrongCopy):
    """Right on the device."""

    def run(self, number, index, one, page, at, to):
        moved = one if self.context.same_allocation else first_page(self.context, one)
        super().run(number, index, moved, page, at, to)


class RunsOfBlocksOnDevice(SimCopy):
    """Right with ids on the host; device-resident ones it counts in kernel pages where a block is one run."""

    def real_pairs(self, ids):
        pairs = super().real_pairs(ids)
        if not is_run_of_pages(self.context):
            return pairs
        pages = self.context.segments[0].nbytes // self.context.src.layout.pools[0].inner
        return [(src // pages, dst // pages) for src, dst in pairs]


class StridesOfPoolsOfRows(ByteBackend):
    """Takes entries of a page-major layout to be as far apart as those of a pool of rows: one row's share."""

    def row_view(self, allocation, spec_index, spec, row):
        view = super().row_view(allocation, spec_index, spec, row)
        layout = allocation.layout
        if len(layout.pools) > 1 or layout.pools[0].outer > 1 or layout.pages_per_entry > 1:
            return view
        step = layout.pools[0].inner // spec.num_rows
        return ByteTensor(view.pool, view.start, view.shape, (step, *view.strides[1:]), view.itemsize)


class TakesOnePoolForBlockMajor(WrongCopy):
    """Writes a page-major host tier in the order that a block-major one has: the device's."""

    def run(self, number, index, one, page, at, to):
        src, dst = self.context.src.layout, self.context.dst.layout
        if self.context.same_allocation or dst.kind != "page-major" or src == dst:
            super().run(number, index, one, page, at, to)
            return
        before = sum(other.nbytes for other in self.context.segments[:index])
        super().run(number, index, one, page, at, to - one.dst_start + before)


def _copy(copy, caught_by, says):
    return Mutant(copy.__name__, lambda: byte_subject(copy=copy), caught_by, says)


ONE_RUN_MUTANTS = [
    Mutant(
        "StridesOfPoolsOfRows",
        lambda: byte_subject(StridesOfPoolsOfRows),
        "views/shape-dtype-strides[kv-2-pages-one-run]",
        "entries taken to be dense",
    ),
    _copy(FirstPageOfTheRun, "copy/many-pairs[kv-2-pages-one-run]", "the size of an entry taken for a block's"),
    Mutant(
        "RunsOfBlocksOnDevice",
        lambda: sim_subject(copy=RunsOfBlocksOnDevice),
        "device-ids/no-padding[unequal-rows-4-pages-one-run]",
        "copy with device-resident ids",
    ),
    _copy(
        FirstPageOfTheSwappedRun,
        "swap/round-trip[without-v-2-pages-one-run]",
        "the size of an entry taken for a block's",
    ),
    _copy(TakesOnePoolForBlockMajor, "swap/other-host-layouts[page-major]", "rows or pages in the wrong order"),
]
