from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened_groups import held_group, opened_group
from samples import Index, kv_plan
from strategies import block_pairs, plans

from cachecore import (
    BlockCacheGeometry,
    BlockIndexError,
    BlockPairsError,
    EngineStateError,
)

BAD_COPIES = {
    "source out of range": ([(4, 1)], BlockIndexError, "source block 4 is out of range; this side has 4 blocks"),
    "destination out of range": ([(0, 4)], BlockIndexError, "destination block 4 is out of range"),
    "negative": ([(0, 1), (-1, 2)], BlockIndexError, "source block -1 is out of range"),
    "doubled": ([(0, 2), (1, 2)], BlockPairsError, "destination block 2 is named more than once"),
    "overlapping": ([(0, 1), (1, 2)], BlockPairsError, "block 1 is both a source and a destination"),
    "onto itself": ([(3, 3)], BlockPairsError, "block 3 is both a source and a destination"),
    "float": ([(0.0, 1)], TypeError, "source blocks must be integers"),
    "text": ("01", TypeError, "block pairs must be integers"),
    "numbers": ([0, 1], TypeError, "block pairs are BlockPairs"),
}


@pytest.mark.parametrize(("pairs", "error", "message"), BAD_COPIES.values(), ids=BAD_COPIES)
def test_a_refused_copy_changes_nothing(pairs, error, message):
    # W19
    group, device, host = opened_group()
    before = device.pools(), host.pools(), group.stats()

    with pytest.raises(error, match=message):
        group.copy(pairs)

    assert (device.pools(), host.pools(), group.stats()) == before


@pytest.mark.parametrize(
    ("direction", "pairs", "error", "message"),
    [
        ("swap_out", [(4, 0)], BlockIndexError, "source block 4 is out of range; this side has 4 blocks"),
        ("swap_out", [(0, 3)], BlockIndexError, "destination block 3 is out of range; this side has 3 blocks"),
        ("swap_in", [(3, 0)], BlockIndexError, "source block 3 is out of range; this side has 3 blocks"),
        ("swap_in", [(0, 4)], BlockIndexError, "destination block 4 is out of range; this side has 4 blocks"),
        ("swap_out", [(0, 1), (2, 1)], BlockPairsError, "destination block 1 is named more than once"),
        ("swap_in", [(0, 1), (2, 1)], BlockPairsError, "destination block 1 is named more than once"),
        ("swap_in", [(0, None)], TypeError, "destination blocks must be integers"),
    ],
)
def test_a_refused_swap_changes_nothing(direction, pairs, error, message):
    group, device, host = opened_group()
    before = device.pools(), host.pools(), group.stats(), group.host_blocks_in_flight()

    with pytest.raises(error, match=message):
        getattr(group, direction)(pairs)

    assert (device.pools(), host.pools(), group.stats(), group.host_blocks_in_flight()) == before


@pytest.mark.parametrize("direction", ["swap_out", "swap_in"])
def test_a_swap_without_a_host_tier_is_refused(direction):
    group, _, _ = opened_group(num_host_blocks=0)

    with pytest.raises(EngineStateError, match="no host tier; open the engine with host_counts= to swap") as caught:
        getattr(group, direction)([(0, 0)])

    assert caught.value.group == "full"


@pytest.mark.parametrize(
    ("block", "error"), [(4, BlockIndexError), (-1, BlockIndexError), (1.0, TypeError), (True, TypeError)]
)
def test_refused_zeroing_changes_nothing(block, error):
    group, device, _ = opened_group()
    before = device.pools()

    with pytest.raises(error, match=r"block"):
        group.zero([0, block])

    assert device.pools() == before


def test_a_zeroed_block_out_of_range_is_named_with_its_group():
    group, _, _ = opened_group()

    with pytest.raises(
        BlockIndexError, match=r"block 4 is out of range; group 'full' has 4, numbered from 0"
    ) as caught:
        group.zero([4])

    assert (caught.value.block, caught.value.limit) == (4, 4)


@pytest.mark.parametrize("pairs", [[], {}, ()])
@pytest.mark.parametrize("direction", ["copy", "swap_out", "swap_in"])
def test_no_pairs_do_nothing_and_are_done(direction, pairs):
    # W17: the caller waited on an event that was never recorded.
    group, device, _, copies = held_group()
    before = device.pools(), group.stats()

    work = getattr(group, direction)(pairs)
    work.wait()
    work.synchronize()

    assert work.done()
    assert (device.pools(), group.stats()) == before
    assert copies.queued == []


@given(plans(), st.data())
def test_a_group_equals_a_dictionary_of_rows(plan, data):
    group, device, host = opened_group(plan)
    expected = {"device": device.read(), "host": host.read()}
    ends = {"copy": ("device", "device"), "swap_out": ("device", "host"), "swap_in": ("host", "device")}
    sizes = {"device": 4, "host": 3}

    for _ in range(data.draw(st.integers(1, 4))):
        direction = data.draw(st.sampled_from([*ends, "zero"]))
        if direction == "zero":
            blocks = data.draw(st.lists(st.integers(0, 3), max_size=3))
            group.zero(blocks)
            for key, held in expected["device"].items():
                if key[2] in blocks:
                    expected["device"][key] = bytes(len(held))
            continue
        src, dst = ends[direction]
        pairs = data.draw(block_pairs(sizes[src], sizes[dst], disjoint=src == dst))
        getattr(group, direction)(pairs)
        source = dict(expected[src])
        for spec, row, block, page in source:
            for one, other in pairs:
                if block == one:
                    expected[dst][spec, row, other, page] = source[spec, row, block, page]

    assert device.read() == expected["device"]
    assert host.read() == expected["host"]


@pytest.mark.parametrize(("logical", "entries"), [(4, [1]), (8, [2, 3]), (16, [4, 5, 6, 7])])
def test_zero_takes_all_pages_of_a_block(logical, entries):
    group, device, _ = opened_group(kv_plan(rows=1, geometry=BlockCacheGeometry(logical, 4)))
    before = bytearray(device.pools()[0])
    for entry in entries:
        before[entry * 512 : (entry + 1) * 512] = bytes(512)

    assert group.zero([Index(1)]).done()

    assert device.pools() == [bytes(before)]


def test_blocks_to_zero_are_a_sequence():
    group, _, _ = opened_group()

    with pytest.raises(TypeError, match="blocks to zero must be a sequence, not 3"):
        group.zero(3)


def test_zero_of_nothing_is_done():
    group, device, _ = opened_group()
    before = device.pools()

    assert group.zero([]).done()

    assert device.pools() == before


def test_counts_add_up_by_direction():
    group, _, _ = opened_group()

    group.copy([(0, 1), (0, 2)])
    group.copy({0: 3})
    group.swap_out([(1, 0)])

    copy, out, back = group.stats().copies
    assert [(one.direction, one.num_calls, one.num_blocks) for one in (copy, out, back)] == [
        ("copy", 2, 3),
        ("swap_out", 1, 1),
        ("swap_in", 0, 0),
    ]
    # device blocks move whole: 2 layers * 2 pages * 512 bytes; between the tiers only 2 * 2 * 256 are payload
    assert (copy.nbytes, out.nbytes) == (3 * 2048, 1024)


def test_a_copy_that_raises_is_not_counted():
    group, _, _, copies = held_group()
    copies.broken = True
    before = group.stats()

    for direction in ("copy", "swap_out", "swap_in"):
        with pytest.raises(OSError, match=r"the stream is gone"):
            getattr(group, direction)([(0, 1)])

    assert group.stats() == before
    assert group.host_blocks_in_flight() == frozenset()


def test_stats_are_a_snapshot():
    group, _, _ = opened_group()
    before = group.stats()

    group.copy([(0, 1)])

    assert before.copies[0].num_calls == 0


def test_device_resident_ids_go_to_the_copy_and_count_as_calls():
    group, _, _, copies = held_group()
    ids = object()

    group.copy_on_device(ids)

    assert copies.on_device_ids == [ids]
    assert (group.stats().copies[0].num_calls, group.stats().copies[0].num_blocks) == (1, 0)


def test_a_copy_that_takes_no_device_ids_is_not_counted():
    group, _, _ = opened_group()

    with pytest.raises(EngineStateError, match=r"copy path 'bytes' cannot take device-resident ids"):
        group.copy_on_device(None)

    assert group.stats().copies[0].num_calls == 0


@pytest.mark.parametrize("pairs", [{0: 1}, {}])
@pytest.mark.parametrize("direction", ["copy", "swap_out", "swap_in"])
def test_a_group_kept_after_its_engine_closed_says_so(direction, pairs):
    group, _, _ = opened_group()
    group.free()

    with pytest.raises(EngineStateError, match="group 'full' is closed"):
        getattr(group, direction)(pairs)
    with pytest.raises(EngineStateError, match="group 'full' is closed"):
        group.copy_on_device(None)


def test_an_interrupt_while_it_waits_still_gives_memory_back():
    group, _, _, held = held_group()
    group.swap_out({0: 1})
    held.queued[0].failure = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        group.free()

    assert group.backend.taken_nbytes == 0
