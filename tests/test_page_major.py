"""The page-major layout: an entry is a kernel page with all rows of all specs, so a block is one run."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import POLICY, layer_spec, plan_set
from strategies import spec_lists

from cachecore import BlockCacheGeometry, CachePlanSet, CacheSlice, CopySegment, LayoutHints, PoolSpec, plan_from_specs
from cachecore.explain import explain_plan
from cachecore.layout_kinds import page_major_layout, row_layout
from cachecore.transfer import block_segments

ONE_RUN = LayoutHints(one_run_per_block=True)


def slices(*rows):
    return tuple(CacheSlice(*row) for row in rows)


def offsets(layout):
    return [[place.offset for place in rows] for rows in layout.slices]


def test_rows_of_one_index_stand_side_by_side():
    specs = [layer_spec("k_cache", rows=3), layer_spec("v_cache", shape=(4, 2, 5), rows=3, page_stride_multiple=576)]

    layout = page_major_layout(specs)

    # K: 4 * 2 * 8 * 2 = 128 bytes, V: 4 * 2 * 5 * 2 = 80 bytes, each row at a multiple of 256:
    # 0, 256, 512, ... 1280; V of the last row ends at 1360; entries are a multiple of lcm(256, 576) = 2304 apart
    assert layout.slices == (
        slices((0, 0, 0, 128), (0, 0, 512, 128), (0, 0, 1024, 128)),
        slices((0, 0, 256, 80), (0, 0, 768, 80), (0, 0, 1280, 80)),
    )
    assert layout.pools == (PoolSpec(outer=1, inner=2304, base_alignment=512, alignment=256, stride_multiple=576),)
    assert (layout.kind, layout.pages_per_entry) == ("page-major", 1)


def test_rows_of_one_index_start_at_the_strictest_alignment():
    specs = [
        layer_spec("a", shape=(5, 4), dtype="uint8", alignment=16, rows=3),  # 20 bytes
        layer_spec("b", shape=(10,), dtype="uint8", alignment=64, rows=3),  # 10 bytes
    ]

    layout = page_major_layout(specs)

    # a ends at 20, b at 64 + 10 = 74; the next row starts at 128, not at 80, so that rows are equally spaced
    assert offsets(layout) == [[0, 128, 256], [64, 192, 320]]
    assert layout.pools[0].inner == 384
    assert [layout.tensor_strides(index, 5).row for index in range(2)] == [128, 128]


def test_row_counts_may_differ():
    specs = [layer_spec("k_cache", rows=1), layer_spec("v_cache", rows=3)]

    layout = page_major_layout(specs)

    # K0, V0, V1, V2, each of 128 bytes filled up to 256
    assert offsets(layout) == [[0], [256, 512, 768]]
    assert layout.pools[0].inner == 1024


def test_a_spec_without_bytes_takes_none_and_asks_for_nothing():
    held = layer_spec("k_cache", alignment=16)
    empty = layer_spec("v_cache", shape=(4, 1, 0), rows=5, alignment=4096, page_stride_multiple=576)

    assert page_major_layout([empty, held]).pools == page_major_layout([held]).pools == (PoolSpec(1, 256, 512, 16),)
    page_major_layout([empty, held]).validate([empty, held])
    assert page_major_layout([empty]).nbytes(3) == page_major_layout([]).nbytes(3) == 0


def test_the_pool_starts_as_asked_or_as_the_specs_need():
    assert page_major_layout([layer_spec()], base_alignment=1 << 21).pools[0].base_alignment == 1 << 21
    assert page_major_layout([layer_spec(alignment=1024)]).pools[0].base_alignment == 1024


@given(spec_lists())
def test_rows_are_apart_in_order_and_each_is_aligned(specs):
    layout = page_major_layout(specs)

    layout.validate(specs)
    placed = sorted(
        (place.offset, row, index, place.nbytes)
        for index, rows in enumerate(layout.slices)
        for row, place in enumerate(rows)
        if place.nbytes
    )
    assert all(one[0] + one[3] <= two[0] and one[1:3] < two[1:3] for one, two in pairwise(placed))
    for offset, _, index, _ in placed:
        assert not offset % specs[index].alignment
        assert not layout.pools[0].inner % specs[index].alignment
        assert not layout.pools[0].inner % specs[index].page_stride_multiple


@given(spec_lists())
def test_rows_are_equally_spaced_where_every_spec_has_as_many(specs):
    if len({spec.num_rows for spec in specs}) == 1:
        layout = page_major_layout(specs)

        assert all(layout.tensor_strides(index, 3) is not None for index in range(len(specs)))


@given(spec_lists(), st.sampled_from([1, 2, 4]), st.sampled_from([512, 4096]))
def test_a_block_is_one_run_between_the_tiers(specs, pages, base):
    hints = LayoutHints(one_run_per_block=True, base_alignment=base)
    plan = plan_from_specs(specs, BlockCacheGeometry(4 * pages, 4), POLICY, hints=hints)

    inner = plan.layout.pools[0].inner
    segments = block_segments(plan.layout, 5 * pages, plan.host_layout, 3 * pages, pages)

    if inner:
        assert plan.host_layout == plan.layout
        nbytes = inner * pages
        assert segments == (CopySegment(0, 0, nbytes, inner, 0, 0, nbytes, inner, nbytes, 1),)
    else:
        assert not segments
    plans = plan_set(plan)
    assert CachePlanSet.loads(plans.dumps()) == plans


def test_keys_and_values_of_a_layer_are_neighbours_for_a_copy_of_rows():
    specs = [layer_spec("k_cache", alignment=16), layer_spec("v_cache", alignment=16)]

    segments = block_segments(page_major_layout(specs), 4, row_layout(specs), 4, 1)

    # 128 bytes each, without padding: K0, V0, K1, V1
    assert [(one.src_start, one.dst_pool, one.dst_start) for one in segments] == [
        (0, 0, 0),
        (128, 1, 0),
        (256, 0, 512),
        (384, 1, 512),
    ]


@pytest.mark.parametrize("pages", [1, 2])
def test_it_is_told_why(pages):
    specs = [
        layer_spec("a", shape=(5, 4), dtype="uint8", alignment=16),
        layer_spec("b", shape=(10,), dtype="uint8", alignment=64),
        layer_spec("c", shape=(6,), dtype="uint8", alignment=1),
    ]
    plan = plan_from_specs(specs, BlockCacheGeometry(4 * pages, 4), POLICY, hints=ONE_RUN)

    (group,) = explain_plan(plan_set(plan))["groups"]

    entry = "the one entry of a block" if pages == 1 else "the entry of a kernel page"
    assert group["device"]["why"] == (
        "a block is one contiguous run, as LayoutHints.one_run_per_block asked: one transfer moves it, and kernels "
        f"find pages at a stride; an entry is one {'block' if pages == 1 else 'kernel page'}"
    )
    assert group["host"]["why"].startswith("the device's layout, so whole entries move without being taken apart; ")
    assert group["caches"][0]["device"] == {
        "placement": "page-major",
        "why": f"all 2 rows stand in {entry}, beside b and c",
    }
    assert [(gap["nbytes"], gap["why"]) for gap in group["device"]["pools"][0]["gaps"]] == [
        (44, "b starts at a multiple of 64, its alignment"),
        (48, "a begins the caches' next rows, which start together at a multiple of 64"),
        (44, "b starts at a multiple of 64, its alignment"),
        (48, "the next entry starts at a multiple of 64: the strictest alignment asked for, by b"),
    ]
