"""The atomic layouts, each a function from specs to a :class:`CacheLayout`, and their composition."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from cachecore.errors import LayoutError
from cachecore.layout import NATIVE_ALIGNMENT, CacheLayout, CacheSlice, PoolSpec
from cachecore.schema import CacheTensorSpec

__all__ = [
    "BASE_ALIGNMENT",
    "block_major_layout",
    "composite_layout",
    "contiguous_layout",
    "contiguous_state_layout",
    "packed_layout",
    "packed_state_layout",
    "page_major_layout",
    "row_layout",
]

BASE_ALIGNMENT = NATIVE_ALIGNMENT
"""Default alignment of a pool's start, in bytes."""

_HOST_ALIGNMENT = 16
"""Block-major rows are aligned for one 16-byte word, so that device kernels gather with the widest access."""

Specs = Sequence[CacheTensorSpec]


def packed_layout(specs: Specs, *, base_alignment: int = BASE_ALIGNMENT) -> CacheLayout:
    """One pool; ``outer`` is the row, the specs stand side by side in ``inner``, each aligned.

    For standard K/V: one pool, few launches. All specs must have the same number of rows.
    """
    if len({spec.num_rows for spec in specs}) > 1:
        rows = {spec.name: spec.num_rows for spec in specs}
        raise LayoutError(f"a packed layout needs equal row counts, but the specs have {rows}")
    offsets, end = [], 0
    for spec in specs:
        end = _round_up(end, spec.alignment)
        offsets.append(end)
        end += spec.desc.aligned_nbytes
    pool = _aligned_pool(specs, specs[0].num_rows if specs else 0, end, base_alignment)
    slices = tuple(
        tuple(CacheSlice(0, row, offset, spec.page_nbytes) for row in range(spec.num_rows))
        for spec, offset in zip(specs, offsets, strict=True)
    )
    return CacheLayout("packed", (pool,), slices)


def row_layout(specs: Specs, *, base_alignment: int = BASE_ALIGNMENT) -> CacheLayout:
    """One pool a spec; ``outer`` is the row, ``inner`` the padded page. For consumers that accept strides."""
    pools = tuple(_aligned_pool((spec,), spec.num_rows, spec.desc.aligned_nbytes, base_alignment) for spec in specs)
    return CacheLayout("row", pools, _one_pool_each(specs))


def contiguous_layout(specs: Specs, *, base_alignment: int = BASE_ALIGNMENT) -> CacheLayout:
    """One pool a spec without padding: ``[rows, pages, *shape]`` is dense, and so is every row of it."""
    pools = tuple(PoolSpec(spec.num_rows, spec.page_nbytes, base_alignment) for spec in specs)
    return CacheLayout("contiguous", pools, _one_pool_each(specs))


def page_major_layout(specs: Specs, *, base_alignment: int = BASE_ALIGNMENT) -> CacheLayout:
    """One pool whose entry is a kernel page with all rows of all specs: a block's pages are one contiguous run.

    For devices that swap, and whose kernels read rows at any stride. Rows of one index stand side by
    side, the specs in order, so that K and V of a layer are neighbours. Each row is aligned for its
    spec; rows of one index start aligned for the strictest, so that the rows of a spec are equally
    spaced for as long as every spec has one.
    """
    held = [spec for spec in specs if spec.page_nbytes]
    strictest = max((spec.alignment for spec in held), default=1)
    slices: list[list[CacheSlice]] = [[CacheSlice(0, 0, 0, 0)] * spec.num_rows for spec in specs]
    end = 0
    for row in range(max((spec.num_rows for spec in held), default=0)):
        end = _round_up(end, strictest)
        for index, spec in enumerate(specs):
            if spec.page_nbytes and row < spec.num_rows:
                offset = _round_up(end, spec.alignment)
                slices[index][row] = CacheSlice(0, 0, offset, spec.page_nbytes)
                end = offset + spec.page_nbytes
    pool = _aligned_pool(held, 1, end, base_alignment)
    return CacheLayout("page-major", (pool,), tuple(map(tuple, slices)))


def block_major_layout(
    specs: Specs, pages_per_block: int, *, like: CacheLayout | None = None, base_alignment: int = BASE_ALIGNMENT
) -> CacheLayout:
    """One pool whose entry is a whole block with all rows of all specs: a block is one contiguous run.

    For the host tier and for transfers; kernels that index pages cannot read it. Rows stand in the
    order they have in ``like`` (the device layout), so that neighbours there stay neighbours and move
    as one run.
    """
    places = [(index, row) for index, spec in enumerate(specs) for row in range(spec.num_rows)]
    if like is not None:
        places.sort(key=lambda place: like.slices[place[0]][place[1]])
    slices: list[list[CacheSlice]] = [[CacheSlice(0, 0, 0, 0)] * spec.num_rows for spec in specs]
    end, widest = 0, 1
    for index, row in places:
        align = min(specs[index].alignment, _HOST_ALIGNMENT)
        widest = max(widest, align)
        end = _round_up(end, align)
        nbytes = specs[index].page_nbytes * pages_per_block
        slices[index][row] = CacheSlice(0, 0, end, nbytes)
        end += nbytes
    pool = PoolSpec(1, _round_up(end, widest), max(base_alignment, widest), widest)
    return CacheLayout("block-major", (pool,), tuple(map(tuple, slices)), pages_per_block)


def packed_state_layout(specs: Specs, *, base_alignment: int = BASE_ALIGNMENT) -> CacheLayout:
    """One pool whose entry is a slot; each spec is aligned, its later rows follow without padding."""
    slices, end = [], 0
    for spec in specs:
        end = _round_up(end, spec.alignment)
        slices.append(
            tuple(CacheSlice(0, 0, end + row * spec.page_nbytes, spec.page_nbytes) for row in range(spec.num_rows))
        )
        end = _round_up(end + spec.num_rows * spec.page_nbytes, spec.alignment)
    return CacheLayout("packed-state", (_aligned_pool(specs, 1, end, base_alignment),), tuple(slices))


def contiguous_state_layout(specs: Specs, *, base_alignment: int = BASE_ALIGNMENT) -> CacheLayout:
    """One dense pool a state, ``[rows, slots, *shape]``."""
    dense = contiguous_layout(specs, base_alignment=base_alignment)
    return CacheLayout("contiguous-state", dense.pools, dense.slices)


def composite_layout(children: Sequence[CacheLayout]) -> CacheLayout:
    """The children's pools one after another; their specs concatenate in the same order."""
    if not children:
        raise LayoutError("a composite layout needs at least one child")
    if len(children) == 1:
        return children[0]
    pages = {child.pages_per_entry for child in children}
    if len(pages) > 1:
        raise LayoutError(f"children of a composite layout must agree on pages_per_entry, not {sorted(pages)}")
    pools: list[PoolSpec] = []
    slices: list[tuple[CacheSlice, ...]] = []
    for child in children:
        shift = len(pools)
        slices.extend(
            tuple(CacheSlice(pool + shift, outer, offset, nbytes) for pool, outer, offset, nbytes in rows)
            for rows in child.slices
        )
        pools.extend(child.pools)
    kind = "composite(" + ", ".join(child.kind for child in children) + ")"
    return CacheLayout(kind, tuple(pools), tuple(slices), pages.pop())


def _one_pool_each(specs: Specs) -> tuple[tuple[CacheSlice, ...], ...]:
    return tuple(
        tuple(CacheSlice(pool, row, 0, spec.page_nbytes) for row in range(spec.num_rows))
        for pool, spec in enumerate(specs)
    )


def _aligned_pool(specs: Specs, outer: int, inner: int, base_alignment: int) -> PoolSpec:
    """Every entry starts aligned for its strictest spec, at a distance that suits every spec's multiple."""
    align = max((spec.alignment for spec in specs), default=1)
    multiple = lcm(*(spec.page_stride_multiple for spec in specs))
    return PoolSpec(outer, _round_up(inner, lcm(align, multiple)), max(base_alignment, align), align, multiple)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
