from __future__ import annotations

import pytest
from samples import consumer_spec, layer_spec

from cachecore import CacheSlice, LayoutError, PoolSpec
from cachecore.layout_kinds import (
    block_major_layout,
    composite_layout,
    contiguous_layout,
    contiguous_state_layout,
    packed_layout,
    packed_state_layout,
    row_layout,
)

DTYPES = [("uint8", 1), ("float16", 2), ("bfloat16", 2), ("float32", 4), ("int64", 8), ("float8_e4m3fn", 1)]
ALL_KINDS = [
    packed_layout,
    row_layout,
    contiguous_layout,
    lambda specs: block_major_layout(specs, 2),
    packed_state_layout,
    contiguous_state_layout,
]
KINDS = pytest.mark.parametrize(
    "lay_out", ALL_KINDS, ids=["packed", "row", "contiguous", "block-major", "packed-state", "contiguous-state"]
)


def slices(*rows):
    return tuple(CacheSlice(*row) for row in rows)


def test_packed_stands_specs_side_by_side():
    specs = [layer_spec("k_cache"), layer_spec("v_cache", shape=(4, 2, 4))]

    layout = packed_layout(specs)

    # K: 4 * 2 * 8 * 2 = 128 bytes, to 256; V: 4 * 2 * 4 * 2 = 64 bytes, to 256
    assert layout.pools == (PoolSpec(outer=2, inner=512, base_alignment=512, alignment=256),)
    assert layout.slices == (slices((0, 0, 0, 128), (0, 1, 0, 128)), slices((0, 0, 256, 64), (0, 1, 256, 64)))


def test_packed_aligns_each_spec_for_itself():
    specs = [
        layer_spec("a", shape=(5, 4), dtype="uint8", alignment=16, rows=1),  # 20 bytes, to 32
        layer_spec("b", shape=(10, 4), dtype="uint8", alignment=64, rows=1),  # 40 bytes at 64, to 128
        layer_spec("c", shape=(3,), dtype="uint8", alignment=1, rows=1),  # 3 bytes at 128; the entry ends at 192
    ]

    layout = packed_layout(specs)

    assert [rows[0].offset for rows in layout.slices] == [0, 64, 128]
    assert layout.pools == (PoolSpec(1, 192, 512, 64),)


@pytest.mark.parametrize(("dtype", "itemsize"), DTYPES)
def test_packed_counts_the_dtype(dtype, itemsize):
    layout = packed_layout([layer_spec(shape=(4, 2, 16), dtype=dtype, alignment=8, rows=3)])

    # 4 tokens * 2 heads * 16 dims = 128 elements, 3 rows
    assert layout.nbytes(1) == 128 * itemsize * 3


def test_packed_refuses_unequal_row_counts():
    with pytest.raises(LayoutError, match=r"equal row counts, but the specs have \{'k_cache': 2, 'v_cache': 3\}"):
        packed_layout([layer_spec("k_cache"), layer_spec("v_cache", rows=3)])


def test_packed_of_nothing_is_one_empty_pool():
    layout = packed_layout([])

    assert (layout.pools, layout.slices) == ((PoolSpec(0, 0, 512, 1),), ())


def test_row_gives_each_spec_a_padded_pool():
    layout = row_layout([consumer_spec("a", rows=3), consumer_spec("b", shape=(4, 100), alignment=64)])

    # a: 4 * 8 = 32 bytes, to 256; b: 400 bytes, to 7 * 64 = 448
    assert layout.pools == (PoolSpec(3, 256, 512, 256), PoolSpec(2, 448, 512, 64))
    assert layout.slices == (
        slices((0, 0, 0, 32), (0, 1, 0, 32), (0, 2, 0, 32)),
        slices((1, 0, 0, 400), (1, 1, 0, 400)),
    )


def test_contiguous_has_no_padding():
    layout = contiguous_layout([consumer_spec("a", rows=3), consumer_spec("b", shape=(4, 25), dtype="float32")])

    # a: 32 bytes; b: 4 * 25 * 4 = 400 bytes
    assert layout.pools == (PoolSpec(3, 32), PoolSpec(2, 400))
    assert layout.padding_nbytes == 0


def test_block_major_keeps_a_block_in_one_run():
    specs = [layer_spec("k_cache"), layer_spec("v_cache", shape=(4, 2, 4))]

    layout = block_major_layout(specs, 4)

    # a row of a block: 4 pages of 128 (K) or 64 (V) bytes; without `like`, spec after spec
    assert layout.pools == (PoolSpec(outer=1, inner=2 * 512 + 2 * 256, base_alignment=512, alignment=16),)
    assert layout.slices == (slices((0, 0, 0, 512), (0, 0, 512, 512)), slices((0, 0, 1024, 256), (0, 0, 1280, 256)))
    assert layout.pages_per_entry == 4


def test_block_major_takes_the_order_of_rows_from_the_device():
    specs = [layer_spec("k_cache"), layer_spec("v_cache", shape=(4, 2, 4))]

    layout = block_major_layout(specs, 4, like=packed_layout(specs))

    # on the device stand k0, v0, then k1, v1
    assert layout.slices == (slices((0, 0, 0, 512), (0, 0, 768, 512)), slices((0, 0, 512, 256), (0, 0, 1280, 256)))


@pytest.mark.parametrize(
    ("alignment", "offset", "inner"),
    [
        (1, 10, 20),  # two rows of 2 pages * 5 bytes
        (4, 12, 24),  # each to 3 * 4
        (256, 16, 32),  # no stricter than 16
    ],
)
def test_block_major_aligns_rows_to_16_bytes_at_most(alignment, offset, inner):
    layout = block_major_layout([layer_spec(shape=(5,), dtype="uint8", alignment=alignment)], 2)

    assert (layout.slices[0][1].offset, layout.pools[0].inner) == (offset, inner)


def test_packed_state_lets_later_rows_follow_without_padding():
    specs = [
        layer_spec("conv", shape=(3, 5), rows=3),  # 30 bytes, three times: 0, 30, 60, ends at 90
        layer_spec("ssm", shape=(4,), dtype="float32"),  # 16 bytes, twice: 256, 272, ends at 288
    ]

    layout = packed_state_layout(specs)

    assert layout.slices == (
        slices((0, 0, 0, 30), (0, 0, 30, 30), (0, 0, 60, 30)),
        slices((0, 0, 256, 16), (0, 0, 272, 16)),
    )
    assert layout.pools == (PoolSpec(1, 512, 512, 256),)


def test_packed_state_slot_of_the_reference_case():
    # float32 (96,) in two layers: 2 * 384 = 768, a multiple of 256
    assert packed_state_layout([layer_spec("s", shape=(96,), dtype="float32")]).nbytes(1) == 768


def test_contiguous_state_is_dense_by_row():
    layout = contiguous_state_layout([layer_spec("conv", shape=(3, 5), rows=3), layer_spec("one", shape=(7,), rows=1)])

    assert layout.pools == (PoolSpec(3, 30), PoolSpec(1, 14))
    assert layout.kind == "contiguous-state"


def test_composite_concatenates_pools_and_slices():
    kv = [layer_spec("k_cache"), layer_spec("v_cache")]
    index = [consumer_spec("index", rows=1)]

    layout = composite_layout([packed_layout(kv), contiguous_layout(index), row_layout(index)])

    assert layout.pools == (PoolSpec(2, 512, 512, 256), PoolSpec(1, 32), PoolSpec(1, 256, 512, 256))
    assert layout.slices[2:] == (slices((1, 0, 0, 32)), slices((2, 0, 0, 32)))
    assert layout.kind == "composite(packed, contiguous, row)"


def test_composite_of_one_is_that_one():
    child = packed_layout([layer_spec()])

    assert composite_layout([child]) is child


def test_composite_of_nothing_is_refused():
    with pytest.raises(LayoutError, match=r"a composite layout needs at least one child"):
        composite_layout([])


def test_composite_refuses_children_with_other_entries():
    specs = [layer_spec()]

    with pytest.raises(LayoutError, match=r"must agree on pages_per_entry, not \[1, 2\]"):
        composite_layout([packed_layout(specs), block_major_layout(specs, 2)])


@pytest.mark.parametrize(
    ("alignment", "inner"),
    [
        (64, 576),  # 128 bytes; 576 = 9 * 64, so nothing more is needed
        (256, 2304),  # the least common multiple of 256 and 576
    ],
)
@pytest.mark.parametrize("lay_out", [packed_layout, row_layout])
def test_page_stride_multiple_holds_for_the_distance_of_entries(lay_out, alignment, inner):
    layout = lay_out([layer_spec(alignment=alignment, page_stride_multiple=576)])

    assert layout.pools == (PoolSpec(2, inner, 512, alignment, 576),)


@pytest.mark.parametrize("lay_out", [contiguous_layout, contiguous_state_layout])
def test_contiguous_knows_no_page_stride_multiple(lay_out):
    assert lay_out([layer_spec(page_stride_multiple=576)]).pools == (PoolSpec(2, 128),)


def test_page_stride_multiples_of_one_pool_are_joined():
    specs = [
        layer_spec("a", alignment=2, page_stride_multiple=6),
        layer_spec("b", alignment=2, page_stride_multiple=10),
    ]

    # 128 + 128 = 256; a multiple of lcm(2, 6, 10) = 30: 270
    assert packed_layout(specs).pools == (PoolSpec(2, 270, 512, 2, 30),)


@KINDS
def test_base_alignment_is_at_least_what_the_specs_need(lay_out):
    layout = lay_out([layer_spec(alignment=1024)])

    assert layout.pools[0].base_alignment >= (1024 if layout.pools[0].alignment > 16 else 512)


@pytest.mark.parametrize("lay_out", [packed_layout, row_layout, contiguous_layout, packed_state_layout])
def test_base_alignment_is_the_callers(lay_out):
    assert lay_out([layer_spec()], base_alignment=1 << 21).pools[0].base_alignment == 1 << 21
    assert block_major_layout([layer_spec()], 2, base_alignment=1 << 21).pools[0].base_alignment == 1 << 21


@KINDS
def test_a_spec_of_zero_bytes_owns_none(lay_out):
    # V of a 656-byte MLA cache
    specs = [layer_spec("k_cache", shape=(4, 1, 656), dtype="float8_e4m3fn"), layer_spec("v_cache", shape=(4, 1, 0))]

    layout = lay_out(specs)

    layout.validate(specs, host=layout.pages_per_entry > 1)
    assert layout.payload_nbytes == 2 * 4 * 656 * layout.pages_per_entry
    assert [row.nbytes for row in layout.slices[1]] == [0, 0]
