from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from row_oracle import RowOracle
from samples import layer_spec
from strategies import block_pairs, plans

from cachecore import (
    BlockPairs,
    ByteBackend,
    CopySegment,
    DeviceSpec,
)
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout, row_layout
from cachecore.reference import BYTE_COPY
from cachecore.transfer import block_segments, resolve_copy

SPECS = [layer_spec("k_cache"), layer_spec("v_cache")]  # two rows of 128 bytes a page each
NULL = DeviceSpec("null")


def test_between_equal_layouts_whole_entries_move():
    packed = packed_layout(SPECS)

    # rows of 5 and of 3 entries of 512 bytes; a block is 2 entries
    assert block_segments(packed, 5, packed, 3, 2) == (
        CopySegment(0, 0, 1024, 512, 0, 0, 1024, 512, nbytes=1024, num_pages=1),
        CopySegment(0, 2560, 1024, 512, 0, 1536, 1024, 512, nbytes=1024, num_pages=1),
    )


def test_between_other_layouts_each_rows_pages_move():
    packed, host = packed_layout(SPECS), block_major_layout(SPECS, 2, like=packed_layout(SPECS))

    # k0 at 0, v0 at 256, k1 at 256, v1 at 512 of a host entry of 2 * 4 * 128 = 1,024 bytes
    assert block_segments(packed, 4, host, 3, 2) == (
        CopySegment(0, 0, 1024, 512, 0, 0, 1024, 128, nbytes=128, num_pages=2),
        CopySegment(0, 256, 1024, 512, 0, 256, 1024, 128, nbytes=128, num_pages=2),
        CopySegment(0, 2048, 1024, 512, 0, 512, 1024, 128, nbytes=128, num_pages=2),
        CopySegment(0, 2304, 1024, 512, 0, 768, 1024, 128, nbytes=128, num_pages=2),
    )


def test_pages_that_follow_one_another_on_both_sides_move_as_one():
    dense, host = contiguous_layout(SPECS[:1]), block_major_layout(SPECS[:1], 2)

    # 2 pages of 128 bytes are 256 in a row on both sides; a device row is 4 pages, a host entry 2 rows of 256
    assert block_segments(dense, 4, host, 3, 2) == (
        CopySegment(0, 0, 256, 128, 0, 0, 512, 128, nbytes=256, num_pages=1),
        CopySegment(0, 512, 256, 128, 0, 256, 512, 128, nbytes=256, num_pages=1),
    )


def test_neighbours_on_both_sides_move_as_one():
    specs = [layer_spec("k_cache", alignment=16), layer_spec("v_cache", alignment=16)]
    packed = packed_layout(specs)  # 128 + 128 bytes, no padding

    # k and v of one layer stand side by side on both sides: 256 bytes; a device row is 4 entries of 256
    assert block_segments(packed, 4, block_major_layout(specs, 1, like=packed), 3, 1) == (
        CopySegment(0, 0, 256, 256, 0, 0, 512, 512, nbytes=256, num_pages=1),
        CopySegment(0, 1024, 256, 256, 0, 256, 512, 512, nbytes=256, num_pages=1),
    )


def test_neighbours_on_one_side_only_stay_apart():
    specs = [layer_spec("k_cache", alignment=16), layer_spec("v_cache", alignment=16)]

    segments = block_segments(packed_layout(specs), 4, row_layout(specs), 4, 1)

    assert [(one.src_pool, one.dst_pool, one.nbytes) for one in segments] == [
        (0, 0, 128),
        (0, 1, 128),
        (0, 0, 128),
        (0, 1, 128),
    ]


def test_rows_without_bytes_do_not_move():
    specs = [layer_spec("k_cache"), layer_spec("v_cache", shape=(4, 1, 0))]

    assert all(one.nbytes for one in block_segments(packed_layout(specs), 4, row_layout(specs), 4, 1))
    assert len(block_segments(contiguous_layout(specs), 4, contiguous_layout(specs), 4, 1)) == 2


@given(plans())
def test_segments_cover_every_row_of_a_block_once(plan):
    pages = plan.pages_per_unit
    for src, dst in ((plan.layout, plan.host_layout), (plan.host_layout, plan.layout)):
        sides = [(layout, 3 * pages // layout.pages_per_entry) for layout in (src, dst)]

        segments = block_segments(*sides[0], *sides[1], pages)

        payload = sum(spec.page_nbytes * spec.num_rows for spec in plan.specs) * pages
        assert sum(one.nbytes * one.num_pages for one in segments) >= payload
        if src != dst:
            assert sum(one.nbytes * one.num_pages for one in segments) == payload


def allocated(plan, num_blocks, num_host_blocks):
    backend = ByteBackend()
    device = backend.allocate(plan.layout, plan.num_entries(num_blocks), NULL)
    host = backend.allocate(plan.host_layout, plan.num_entries(num_host_blocks, host=True), DeviceSpec("cpu"))
    return backend, RowOracle(plan, device), RowOracle(plan, host, host=True)


def moved(expected, source, pairs):
    """``expected`` after the rows of every pair's source became its destination's."""
    after = dict(expected)
    for spec, row, block, page in source:
        for src, dst in pairs:
            if src == block:
                after[spec, row, dst, page] = source[spec, row, block, page]
    return after


@given(plans(), st.data())
def test_a_copy_moves_exactly_the_rows_of_its_pairs(plan, data):
    backend, device, _ = allocated(plan, 5, 1)
    device.fill(1)
    pairs = data.draw(block_pairs(5, 5, disjoint=True))
    before, untouched = device.read(), device.pools()
    copy = resolve_copy([BYTE_COPY], plan, (backend, device.allocation), (backend, device.allocation)).copy

    copy(BlockPairs.of(pairs))

    assert device.read() == moved(before, before, pairs)
    was, now = device.padding_of(untouched, [dst for _, dst in pairs])
    assert was == now


@given(plans(), st.data())
def test_a_swap_moves_exactly_the_rows_of_its_pairs(plan, data):
    backend, device, host = allocated(plan, 4, 3)
    device.fill(1)
    host.fill(2)
    pairs = data.draw(block_pairs(4, 3))
    held, before, untouched, source = device.read(), host.read(), host.pools(), device.pools()
    copy = resolve_copy([BYTE_COPY], plan, (backend, device.allocation), (backend, host.allocation)).copy

    copy(BlockPairs.of(pairs))

    assert host.read() == moved(before, held, pairs)
    assert device.pools() == source
    was, now = host.padding_of(untouched, [dst for _, dst in pairs])
    assert was == now


@given(plans(), st.permutations(range(4)), st.permutations(range(4)))
def test_swap_out_and_in_is_the_identity(plan, sources, destinations):
    backend, device, host = allocated(plan, 4, 4)
    device.fill(3)
    before = device.read()
    ends = (backend, device.allocation), (backend, host.allocation)
    out = resolve_copy([BYTE_COPY], plan, *ends).copy
    back = resolve_copy([BYTE_COPY], plan, *reversed(ends)).copy

    out(BlockPairs(sources, destinations))
    device.fill(4)  # whatever comes into the blocks in between
    back(BlockPairs(destinations, sources))

    assert device.read() == before
