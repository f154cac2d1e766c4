from __future__ import annotations

from dataclasses import replace

import pytest
from samples import consumer_spec, layer_spec

from cachecore import CacheLayout, CacheSlice, LayoutError, PoolSpec
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout, row_layout

SPECS = [layer_spec("k_cache"), layer_spec("v_cache")]  # two rows of 128 bytes each


TWO_ROWS = PoolSpec(2, 512)


def placed(*rows, pool=TWO_ROWS, specs=SPECS[:1], **more):
    """A layout that places the rows of one spec, and its spec."""
    return CacheLayout("vendor", (pool,), (tuple(CacheSlice(*row) for row in rows),), **more), specs


def refused(layout, specs, *, host=False):
    with pytest.raises(LayoutError) as caught:
        layout.validate(specs, host=host)
    return str(caught.value), caught.value


def test_a_sound_layout_is_accepted():
    layout, specs = placed((0, 0, 0, 128), (0, 1, 384, 128))

    layout.validate(specs)


def test_a_missing_row_is_refused():
    message, error = refused(*placed((0, 0, 0, 128)))

    assert "places 1 rows of cache 'k_cache', which has 2; every row must be placed exactly once" in message
    assert error.cache == "k_cache"


def test_a_row_too_many_is_refused():
    message, _ = refused(*placed((0, 0, 0, 128), (0, 1, 0, 128), (0, 1, 128, 128)))

    assert "places 3 rows of cache 'k_cache', which has 2" in message


def test_a_missing_spec_is_refused():
    message, _ = refused(packed_layout(SPECS[:1]), SPECS)

    assert message == "layout 'packed' places 1 specs, but there are 2"


@pytest.mark.parametrize("start", [0, 64, 127], ids=["twice", "in the middle", "by one byte"])
def test_overlapping_rows_are_refused(start):
    specs = [layer_spec(dtype="uint8", shape=(128,), alignment=1)]
    message, error = refused(*placed((0, 1, 0, 128), (0, 1, start, 128), specs=specs))

    assert "pool 0: row 0 of cache 'k_cache' ends at byte 128, but row 1 of cache 'k_cache' starts at byte" in message
    assert "rows must not overlap" in message
    assert error.pool == 0


def test_rows_of_two_specs_must_not_overlap_either():
    one = packed_layout(SPECS)
    layout = replace(one, slices=(one.slices[0], one.slices[0]))

    message, _ = refused(layout, SPECS)

    assert "cache 'k_cache'" in message
    assert "cache 'v_cache'" in message


def test_neighbours_do_not_overlap():
    layout, specs = placed((0, 0, 128, 128), (0, 0, 0, 128))

    layout.validate(specs)


@pytest.mark.parametrize(
    "row", [(1, 0, 0, 128), (-1, 0, 0, 128), (0, 2, 0, 128), (0, -1, 0, 128)], ids=["pool", "-1", "outer", "outer -1"]
)
def test_a_row_in_a_pool_that_does_not_exist_is_refused(row):
    message, error = refused(*placed((0, 0, 0, 128), row))

    assert f"row 1 (id 1) of cache 'k_cache' lies in pool {row[0]}, outer {row[1]}, which does not exist" in message
    assert (error.cache, error.row) == ("k_cache", 1)


@pytest.mark.parametrize("nbytes", [127, 129, 0, 256])
def test_a_row_of_another_length_is_refused(nbytes):
    message, _ = refused(*placed((0, 0, 0, 128), (0, 1, 0, nbytes)))

    assert f"is given {nbytes} bytes an entry, but needs 128" in message


def test_a_row_of_a_block_holds_all_its_pages():
    layout, specs = placed((0, 0, 0, 128), (0, 1, 0, 128), pages_per_entry=4)
    message, _ = refused(layout, specs, host=True)

    assert "is given 128 bytes an entry, but needs 512" in message


@pytest.mark.parametrize("offset", [385, -1, 512])
def test_a_row_beyond_its_entry_is_refused(offset):
    specs = [layer_spec(dtype="uint8", shape=(128,), alignment=1)]
    message, _ = refused(*placed((0, 0, 0, 128), (0, 1, offset, 128), specs=specs))

    assert f"takes bytes {offset} to {offset + 128} of pool 0's 512 an entry" in message


@pytest.mark.parametrize("row", [(0, 1, 0.0, 128), (0, True, 0, 128), (0.0, 1, 0, 128), (0, 1, 0, "128"), (None,) * 4])
def test_a_row_placed_by_other_things_than_integers_is_refused(row):
    message, _ = refused(*placed((0, 0, 0, 128), row))

    assert f"row 1 (id 1) of cache 'k_cache' is placed by {row!r}; expected four plain integers" in message


@pytest.mark.parametrize(
    ("pool", "offset"),
    [(PoolSpec(2, 512), 2), (PoolSpec(2, 510), 0), (PoolSpec(2, 512, base_alignment=2), 0)],
    ids=["offset", "entry", "base"],
)
def test_a_row_between_its_elements_is_refused(pool, offset):
    # W20: "storage_offset must be divisible" came from the array library, late.
    specs = [layer_spec(dtype="float32", shape=(32,), alignment=4)]
    message, _ = refused(*placed((0, 0, 0, 128), (0, 1, offset, 128), pool=pool, specs=specs))

    assert "all must be multiples of the 4 bytes of float32" in message


@pytest.mark.parametrize(
    ("pool", "offset", "claimed"),
    [
        (PoolSpec(2, 512, alignment=256), 128, 256),
        (PoolSpec(2, 384, alignment=256), 0, 256),
        (PoolSpec(2, 512, base_alignment=128, alignment=256), 0, 256),
        (PoolSpec(2, 512, alignment=64), 32, 64),
    ],
    ids=["offset", "entry", "base", "a weaker claim"],
)
def test_a_claimed_alignment_is_proved(pool, offset, claimed):
    message, error = refused(*placed((0, 0, offset, 128), (0, 1, offset, 128), pool=pool))

    assert f"is not aligned to {claimed} as claimed" in message
    assert (error.cache, error.pool) == ("k_cache", 0)


def test_alignment_holds_for_the_first_row_of_an_entry_only():
    layout, specs = placed((0, 0, 128, 128), (0, 0, 0, 128), pool=PoolSpec(1, 256, alignment=256))

    layout.validate(specs)


def test_a_spec_need_not_be_aligned_stricter_than_it_asked():
    layout, specs = placed(
        (0, 0, 16, 128), (0, 1, 16, 128), pool=PoolSpec(2, 512, alignment=256), specs=[layer_spec(alignment=16)]
    )

    layout.validate(specs)


def test_a_claimed_stride_multiple_is_proved():
    message, error = refused(*placed((0, 0, 0, 128), (0, 1, 0, 128), pool=PoolSpec(2, 512, stride_multiple=576)))

    assert "pool 0 of layout 'vendor': entries are 512 bytes apart, which is no multiple of the claimed 576" in message
    assert error.pool == 0


@pytest.mark.parametrize("lay_out", [packed_layout, row_layout])
def test_a_row_that_asked_for_contiguity_must_have_it(lay_out):
    specs = [consumer_spec(per_row_contiguous=True)]  # 32 bytes in entries of 256

    message, _ = refused(lay_out(specs), specs)

    assert "cache 'index' asked for a contiguous row, but its entries are 256 bytes apart and hold 32" in message
    contiguous_layout(specs).validate(specs)


def test_the_host_tier_need_not_be_contiguous():
    specs = [consumer_spec(per_row_contiguous=True)]

    block_major_layout(specs, 2).validate(specs, host=True)


def test_a_row_of_zero_bytes_overlaps_nothing():
    specs = [layer_spec(), layer_spec("v_cache", shape=(4, 2, 0))]
    layout = CacheLayout(
        "vendor",
        (PoolSpec(2, 128),),
        tuple(tuple(CacheSlice(0, row, 0, nbytes) for row in (0, 1)) for nbytes in (128, 0)),
    )

    layout.validate(specs)


def test_a_pool_of_mostly_no_rows_is_refused():
    message, error = refused(*placed((0, 0, 0, 128), (0, 1, 0, 128), pool=PoolSpec(2**40, 512)))

    assert "pool 0 of layout 'vendor' has outer 1099511627776, but 2 rows stand in it" in message
    assert error.pool == 0
