from __future__ import annotations

from hypothesis import given
from samples import consumer_spec, layer_spec
from strategies import plans

from cachecore.layout_kinds import block_major_layout, packed_layout, row_layout
from cachecore.occupancy import Held, occupancy


def test_a_packed_entry_holds_each_spec_and_its_padding():
    # 4 * 2 * 8 * 2 = 128 bytes, aligned to 256; 4 * 1 * 3 * 2 = 24 bytes at 256, entries 512 bytes apart
    layout = packed_layout([layer_spec("k", rows=2), layer_spec("v", (4, 1, 3), rows=2)])

    entry = (Held(0, 128, 0, 0), Held(128, 128, None, 0), Held(256, 24, 1, 0), Held(280, 232, None, 0))
    assert occupancy(layout) == ((entry, tuple(one._replace(row=1) if one.spec is not None else one for one in entry)),)


def test_pools_are_told_apart():
    # 4 * 8 * 1 = 32 bytes in entries of 256
    layout = row_layout([consumer_spec("a", rows=1), consumer_spec("b", rows=1)])

    assert occupancy(layout) == (
        ((Held(0, 32, 0, 0), Held(32, 224, None, 0)),),
        ((Held(0, 32, 1, 0), Held(32, 224, None, 0)),),
    )


def test_a_row_without_bytes_holds_nothing():
    layout = packed_layout([layer_spec("k", (4, 1, 64), rows=1), layer_spec("v", (4, 1, 0), rows=1)])

    # 4 * 64 * 2 = 512 bytes, aligned
    assert occupancy(layout) == (((Held(0, 512, 0, 0),),),)


def test_rows_of_a_block_follow_the_order_they_stand_in():
    specs = [layer_spec("k", rows=2), layer_spec("v", rows=2)]
    device = packed_layout(specs)

    # Two pages of 128 bytes a row; on the device k and v of layer 0 come before those of layer 1.
    ((block,),) = occupancy(block_major_layout(specs, 2, like=device))
    assert block == (Held(0, 256, 0, 0), Held(256, 256, 1, 0), Held(512, 256, 0, 1), Held(768, 256, 1, 1))


@given(plans())
def test_every_byte_of_an_entry_is_held_once(plan):
    for layout in (plan.layout, plan.host_layout):
        for pool, by_outer in zip(layout.pools, occupancy(layout), strict=True):
            assert len(by_outer) == pool.outer
            for filled in by_outer:
                ends = [0, *(one.end for one in filled)]
                assert [one.offset for one in filled] == ends[:-1]
                assert ends[-1] == pool.inner
