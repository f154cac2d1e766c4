"""Random specs, layouts, plans and pairs for the property tests."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from hypothesis import strategies as st
from samples import plan_with

from cachecore import BlockCacheGeometry, BlockCachePlan, CacheLayout, CacheTensorSpec, HeadShard
from cachecore.dtypes import ITEMSIZE
from cachecore.layout_kinds import (
    block_major_layout,
    composite_layout,
    contiguous_layout,
    packed_layout,
    packed_state_layout,
    page_major_layout,
    row_layout,
)

DTYPES = ("uint8", "float16", "float32", "int64", "float8_e4m3fn")
MULTIPLES = (1, 1, 1, 3, 24, 576)
SHARDS = (HeadShard(), HeadShard(8, 2, 2), HeadShard(2, 1, 1, 3))


@st.composite
def specs(draw: st.DrawFn, number: int = 0) -> CacheTensorSpec:
    """One tensor ``t<number>`` of one to three rows, found by layer or by consumer row; some have no bytes."""
    dtype = draw(st.sampled_from(DTYPES))
    num_rows = draw(st.integers(1, 3))
    row_ids = draw(st.permutations(range(num_rows + 2)))[:num_rows]
    itemsize = ITEMSIZE[dtype]
    return CacheTensorSpec(
        name=f"t{number}",
        shape=draw(st.sampled_from([(), (1,), (5,), (4, 2, 3), (3, 7), (4, 0), (2, 8)])),
        dtype=dtype,
        alignment=draw(st.sampled_from([align for align in (1, 2, 8, 16, 64, 256) if align >= itemsize])),
        page_stride_multiple=draw(st.sampled_from(MULTIPLES)),
        shard=draw(st.sampled_from(SHARDS)),
        row_ids=tuple(row_ids),
        consumer_rows=tuple(draw(st.permutations(range(num_rows)))) if draw(st.booleans()) else None,
    )


@st.composite
def spec_lists(draw: st.DrawFn) -> list[CacheTensorSpec]:
    """One to four tensors."""
    return [draw(specs(number)) for number in range(draw(st.integers(1, 4)))]


PAGE_KINDS = {
    "packed": packed_layout,
    "row": row_layout,
    "contiguous": contiguous_layout,
    "packed-state": packed_state_layout,
    "page-major": page_major_layout,
}


@st.composite
def layouts(draw: st.DrawFn, listed: list[CacheTensorSpec], pages_per_block: int) -> CacheLayout:
    """Any layout of ``listed``: block-major, or consecutive runs of the kinds whose entry is a page."""
    base = draw(st.sampled_from([8, 512, 4096]))
    kinds = ["block-major", *PAGE_KINDS]
    chosen = [draw(st.sampled_from(kinds if number == 0 else kinds[1:])) for number, _ in enumerate(listed)]
    if chosen[0] == "block-major":
        return block_major_layout(listed, pages_per_block, base_alignment=base)
    children = [
        PAGE_KINDS[kind]([spec for _, spec in run], base_alignment=base)
        for (kind, _), run in groupby(
            zip(chosen, listed, strict=True), key=lambda pair: (pair[0], pair[1].num_rows if pair[0] == "packed" else 0)
        )
    ]
    return composite_layout(children)


@st.composite
def plans(draw: st.DrawFn, pages: tuple[int, ...] = (1, 2, 4), group: str = "full") -> BlockCachePlan:
    """A block plan with a device and a host layout of any two kinds."""
    listed = draw(spec_lists())
    pages_per_block = draw(st.sampled_from(pages))
    layout = draw(layouts(listed, pages_per_block))
    host = draw(st.one_of(layouts(listed, pages_per_block), st.just(layout), st.none()))
    dense = [
        replace(spec, per_row_contiguous=True) if _is_dense(spec, rows, layout) and draw(st.booleans()) else spec
        for spec, rows in zip(listed, layout.slices, strict=True)
    ]
    return plan_with(dense, layout, host, geometry=BlockCacheGeometry(4 * pages_per_block, 4), group=group)


def _is_dense(spec: CacheTensorSpec, rows: tuple[object, ...], layout: CacheLayout) -> bool:
    """Whether every row of ``spec`` fills its entries."""
    return all(row.nbytes == layout.pools[row.pool].inner for row in layout.slices[layout.slices.index(rows)])


def block_pairs(num_src: int, num_dst: int, *, disjoint: bool = False) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Pairs with distinct destinations; with ``disjoint`` no block is both read and written."""
    ids = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    pairs = st.lists(ids, unique_by=lambda pair: pair[1], max_size=num_dst)
    if not disjoint:
        return pairs
    return pairs.map(lambda listed: [(s, d) for s, d in listed if s not in {dst for _, dst in listed}])
