from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Index, layer_spec

from cachecore import CacheLayout, CacheSlice, LayoutError, PlanError, PoolSpec
from cachecore.layout import RowStrides
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout

K_AND_V = [layer_spec("k_cache"), layer_spec("v_cache")]  # 128 bytes each, aligned to 256; two rows


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"outer": -1}, "pool outer is -1; expected zero or more"),
        ({"inner": -256}, "pool inner is -256; expected zero or more"),
        ({"base_alignment": 0}, "pool base_alignment is 0; expected at least 1"),
        ({"base_alignment": 768}, "pool base_alignment is 768; expected a power of two"),
        ({"alignment": 0}, "pool alignment is 0; expected at least 1"),
        ({"alignment": 24}, "pool alignment is 24; expected a power of two"),
        ({"stride_multiple": 0}, "pool stride_multiple is 0; expected at least 1"),
    ],
)
def test_pool_that_cannot_be_is_refused(pool, message):
    with pytest.raises(LayoutError, match=message):
        PoolSpec(**{"outer": 2, "inner": 512, **pool})


@pytest.mark.parametrize("wrong", [2.0, "2", True, None])
def test_pool_of_a_wrong_type_is_a_type_error(wrong):
    with pytest.raises(TypeError, match=r"pool outer must be an integer"):
        PoolSpec(wrong, 512)


def test_pool_keeps_plain_integers():
    pool = PoolSpec(Index(2), Index(512), Index(512), Index(256), Index(1))

    assert pool == PoolSpec(2, 512, 512, 256, 1)
    assert json.dumps(CacheLayout("packed", (pool,), ()).to_json())


@pytest.mark.parametrize("pages", [0, -1])
def test_layout_needs_pages_in_an_entry(pages):
    with pytest.raises(LayoutError, match=f"layout 'packed' has {pages} pages_per_entry; expected at least 1"):
        CacheLayout("packed", (), (), pages)


def test_layout_kind_is_a_name():
    with pytest.raises(TypeError, match=r"a layout's kind must be a string, not 3"):
        CacheLayout(3, (), ())


def test_layout_counts_payload_and_padding():
    layout = packed_layout(K_AND_V)

    # one entry: 2 rows * (256 + 256) bytes, of which 2 * (128 + 128) are payload
    assert (layout.entry_nbytes, layout.payload_nbytes, layout.padding_nbytes) == (1024, 512, 512)


@pytest.mark.parametrize(("num_entries", "nbytes"), [(0, 0), (1, 1024), (3, 3072)])
def test_nbytes_counts_every_row_once(num_entries, nbytes):
    assert packed_layout(K_AND_V).nbytes(num_entries) == nbytes


@pytest.mark.parametrize(
    ("base_alignment", "nbytes"),
    [
        (512, 3072),  # every allocator aligns to 512 by itself
        (1024, 3072 + 1024),  # room to move the start up to a multiple
        (1 << 21, 3072 + (1 << 21)),
    ],
)
def test_reserved_nbytes_adds_room_beyond_the_native_alignment(base_alignment, nbytes):
    layout = packed_layout(K_AND_V, base_alignment=base_alignment)

    assert layout.reserved_nbytes(3) == nbytes
    assert layout.reserved_nbytes(0) == 0


def test_an_empty_pool_reserves_nothing():
    layout = contiguous_layout([layer_spec(), layer_spec("v_cache", shape=(4, 1, 0))], base_alignment=1024)

    # k: 2 rows * 3 entries * 128 bytes = 768, and 1024 to align; v has no bytes
    assert [layout.buffer_nbytes(pool, 3) for pool in (0, 1)] == [768 + 1024, 0]


@pytest.mark.parametrize("method", ["nbytes", "reserved_nbytes"])
def test_a_negative_entry_count_is_refused(method):
    # W22: plan.allocate(-1) reached the array library.
    with pytest.raises(LayoutError, match=r"num_entries is -1; expected zero or more") as caught:
        getattr(packed_layout(K_AND_V), method)(-1)

    assert caught.value.num_entries == -1


@pytest.mark.parametrize("wrong", [1.0, "1", True])
def test_an_entry_count_of_a_wrong_type_is_a_type_error(wrong):
    with pytest.raises(TypeError, match=r"num_entries must be an integer"):
        packed_layout(K_AND_V).nbytes(wrong)


def test_row_strides_of_a_page_layout():
    at = packed_layout(K_AND_V).row_strides(1, 1, num_entries=5)

    # row 1 of V: after 5 entries of row 0 (5 * 512 = 2560), 256 bytes into the entry; entries are 512 apart
    assert at == RowStrides(pool=0, start=2816, row=0, entry=512, page=128)


def test_row_strides_of_a_block_layout():
    at = block_major_layout(K_AND_V, 4, like=packed_layout(K_AND_V)).row_strides(0, 1, num_entries=5)

    # 4 pages of 128 bytes a row; in an entry stand k0, v0, k1, v1: k1 after 2 * 512 bytes, entries 4 * 512 apart
    assert at == RowStrides(pool=0, start=1024, row=0, entry=2048, page=128)


def test_tensor_strides_step_from_row_to_row():
    packed = packed_layout(K_AND_V).tensor_strides(1, num_entries=5)
    host = block_major_layout(K_AND_V, 4, like=packed_layout(K_AND_V)).tensor_strides(1, num_entries=5)

    assert packed == RowStrides(pool=0, start=256, row=2560, entry=512, page=128)  # a row is 5 entries of 512
    assert host == RowStrides(pool=0, start=512, row=1024, entry=2048, page=128)  # a row is in every entry


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 0, 128), (0, 0, 128, 128), (0, 0, 384, 128)],
        [(0, 0, 0, 128), (0, 1, 0, 128), (0, 3, 0, 128)],
        [(0, 0, 0, 128), (0, 1, 0, 128), (1, 2, 0, 128)],
    ],
    ids=["offsets", "outers", "pools"],
)
def test_unequally_spaced_rows_have_no_tensor(rows):
    layout = CacheLayout("odd", (PoolSpec(4, 512), PoolSpec(4, 512)), (tuple(CacheSlice(*row) for row in rows),))

    assert layout.tensor_strides(0, num_entries=5) is None


def test_json_folds_equally_spaced_rows():
    layout = packed_layout([layer_spec(rows=100)])

    assert layout.to_json()["rows"] == [[[0, 0, 0, 128, 100, 1, 0]]]


places = st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))


@given(st.lists(st.lists(places, min_size=1, max_size=8), min_size=1, max_size=3))
def test_json_is_its_own_inverse(rows):
    layout = CacheLayout(
        "odd", (PoolSpec(4, 512), PoolSpec(0, 0, 1, 1, 576)), [[CacheSlice(*row) for row in one] for one in rows], 2
    )

    data = json.loads(json.dumps(layout.to_json()))

    assert CacheLayout.from_json(data, [len(one) for one in rows]) == layout


def layout_json(**more):
    return {**packed_layout([layer_spec(rows=4)]).to_json(), **more}


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([[0, 0, 0, 128, 3, 1, 0]], "places 3 rows of a cache that has 4"),
        ([[0, 0, 0, 128, 10**15, 1, 0]], "places 1000000000000000 rows of a cache that has 4"),
        ([[0, 0, 0, 128, 5, 1, 0], [0, 5, 0, 128, -1, 1, 0]], "is no run of rows"),
        ([[0, 0, 0, 128, 0, 1, 0]], "is no run of rows"),
        ([[0, 0, 0, 128, 4, 1]], "is no run of rows; expected pool, outer, offset, nbytes, count and two steps"),
        ([[]], "is no run of rows"),
    ],
)
def test_json_with_other_rows_is_refused_before_they_are_written_out(runs, message):
    with pytest.raises(LayoutError, match=message):
        CacheLayout.from_json(layout_json(rows=[runs]), [4])


def test_json_with_other_specs_is_refused():
    with pytest.raises(LayoutError, match=r"layout places 1 specs, but there are 2"):
        CacheLayout.from_json(layout_json(), [4, 4])


def test_json_with_other_fields_is_refused():
    with pytest.raises(PlanError, match=r"layout lacks fields \[\] and has unknown fields \['strides'\]"):
        CacheLayout.from_json(layout_json(strides=3), [4])


@pytest.mark.parametrize(
    ("pools", "slices", "message"),
    [
        ((None,), (), "has pool None; expected a PoolSpec"),
        ((), (((0, 0, 0, 128),),), r"places a row by \(0, 0, 0, 128\); expected a CacheSlice"),
        ((), ((None,),), "places a row by None; expected a CacheSlice"),
        ((), (3,), "slices must be a sequence, not 3"),
    ],
)
def test_a_layout_of_wrong_parts_is_a_type_error(pools, slices, message):
    with pytest.raises(TypeError, match=message):
        CacheLayout("vendor's", pools, slices)
