from __future__ import annotations

import copy
import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Index

from cachecore import BlockIndexError, BlockPairs, BlockPairsError
from cachecore.blocks import BlockIds


@pytest.mark.parametrize(
    "pairs",
    [
        BlockPairs([3, 0], [5, 9]),
        {3: 5, 0: 9},
        [(3, 5), (0, 9)],
        ((3, 5), (0, 9)),
        [[3, 5], [0, 9]],
        ((src, dst) for src, dst in [(3, 5), (0, 9)]),
        zip(array("q", [3, 0]), range(5, 10, 4), strict=True),
        [(Index(3), Index(5)), (Index(0), Index(9))],
    ],
    ids=["pairs", "mapping", "list", "tuple", "lists", "generator", "zip", "index protocol"],
)
def test_of_reads_every_form(pairs):
    read = BlockPairs.of(pairs)

    assert list(read) == [(3, 5), (0, 9)]
    assert (read.src, read.dst) == (array("q", [3, 0]), array("q", [5, 9]))


def test_ranges_are_read():
    assert list(BlockPairs(range(2), range(8, 10))) == [(0, 8), (1, 9)]


def test_pairs_are_kept_apart_from_what_they_were_read_from():
    ids = array("q", [1, 2])
    pairs = BlockPairs(ids, range(8, 10))

    ids[0] = 7

    assert pairs.src[0] == 1


CHANGES = {
    "item": lambda ids: ids.__setitem__(0, 9),
    "slice": lambda ids: ids.__setitem__(slice(0, 1), array("q", [9])),
    "deletion": lambda ids: ids.__delitem__(0),
    "addition": lambda ids: ids.__iadd__(array("q", [9])),
    "multiplication": lambda ids: ids.__imul__(2),
    "append": lambda ids: ids.append(9),
    "clear": lambda ids: ids.clear(),
    "extend": lambda ids: ids.extend([9]),
    "insert": lambda ids: ids.insert(0, 9),
    "pop": lambda ids: ids.pop(),
    "remove": lambda ids: ids.remove(1),
    "reverse": lambda ids: ids.reverse(),
    "byteswap": lambda ids: ids.byteswap(),
    "frombytes": lambda ids: ids.frombytes(bytes(8)),
    "fromlist": lambda ids: ids.fromlist([9]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("given", [[1, 2], range(1, 3)], ids=["list", "range"])
def test_checked_pairs_do_not_change(change, side, given):
    pairs = BlockPairs(given, [5, 6])

    with pytest.raises(TypeError, match=r"block ids stay as they were checked; make new BlockPairs"):
        change(getattr(pairs, side))

    assert list(pairs) == [(1, 5), (2, 6)]


def test_every_way_to_change_an_array_is_covered():
    made_new = {"__add__", "__mul__", "__rmul__", "__copy__", "__deepcopy__", "__getitem__", "__class_getitem__"}
    reading = {"buffer_info", "count", "index", "itemsize", "tobytes", "tofile", "tolist", "tounicode", "typecode"}
    changing = {
        name
        for name in vars(array)
        if name not in made_new | reading and not hasattr(tuple, name) and not name.startswith(("__buf", "__rel"))
    }

    assert changing - {"fromunicode", "fromfile"} <= set(vars(BlockIds)) | {"__module__"}
    assert {"__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "byteswap"} <= changing


@pytest.mark.parametrize("side", ["src", "dst"])
def test_checked_pairs_keep_their_arrays(side):
    pairs = BlockPairs([1], [5])

    with pytest.raises(AttributeError):
        setattr(pairs, side, array("q", [5, 5]))


def test_ids_are_arrays_to_whoever_reads_them():
    pairs = BlockPairs([3, 1], [5, 6])
    src = pairs.src

    assert memoryview(src).format == "q"
    assert memoryview(src).tolist() == src.tolist() == [3, 1]
    assert src + array("q", [7]) == array("q", [3, 1, 7])
    assert src[1:] == array("q", [1])
    assert pickle.loads(pickle.dumps(pairs)) == copy.deepcopy(pairs) == pairs
    with pytest.raises(TypeError, match=r"stay as they were"):
        pickle.loads(pickle.dumps(pairs)).src[0] = 4


@pytest.mark.parametrize("empty", [{}, [], (), BlockPairs([], [])])
def test_no_pairs_are_fine(empty):
    pairs = BlockPairs.of(empty)
    pairs.check_range(num_src=0, num_dst=0)
    pairs.check_disjoint()

    assert len(pairs) == 0
    assert list(pairs.runs()) == []


def test_a_source_may_repeat():
    assert list(BlockPairs([1, 1], [2, 3])) == [(1, 2), (1, 3)]


def test_a_doubled_destination_is_refused():
    with pytest.raises(
        BlockPairsError, match=r"destination block 3 is named more than once; .* name each .* once"
    ) as e:
        BlockPairs([0, 1, 2], [3, 4, 3])

    assert e.value.block == 3


def test_unequal_lengths_are_refused():
    with pytest.raises(BlockPairsError, match=r"2 source blocks for 1 destinations; expected one destination") as e:
        BlockPairs([0, 1], [2])

    assert (e.value.num_src, e.value.num_dst) == (2, 1)


class Tensor:
    """Stands for a tensor by its module, the only thing the core looks at."""

    __module__ = "torch"


@pytest.mark.parametrize("wrong", [[0.0], [1.5], ["1"], [None], [[1]], [object()]])
def test_an_id_that_is_no_integer_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="source blocks must be integers"):
        BlockPairs(wrong, [0])


def test_a_boolean_id_is_a_type_error():
    with pytest.raises(TypeError, match="destination blocks must be integers, not booleans"):
        BlockPairs([0], [True])


@pytest.mark.parametrize("wrong", ["12", b"12", bytearray(b"12"), 12, None])
def test_ids_that_are_no_sequence_are_a_type_error(wrong):
    with pytest.raises(TypeError, match="source blocks must be"):
        BlockPairs(wrong, [0, 1])


def test_device_resident_ids_are_a_type_error_that_names_the_way():
    with pytest.raises(TypeError, match=r"pass tensor.tolist\(\), or .* copy_blocks_on_device"):
        BlockPairs(Tensor(), [0])
    with pytest.raises(TypeError, match="copy_blocks_on_device"):
        BlockPairs.of(Tensor())


@pytest.mark.parametrize("wrong", ["ab", [1, 2], [(1, 2, 3)], [(1,)], [None]])
def test_pairs_of_another_form_are_a_type_error(wrong):
    with pytest.raises(TypeError, match="block pairs"):
        BlockPairs.of(wrong)


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1])
def test_an_id_beyond_64_bits_is_out_of_range(number):
    with pytest.raises(BlockIndexError, match="a source block does not fit 64 bits"):
        BlockPairs([number], [0])


@pytest.mark.parametrize(
    ("pairs", "side", "block", "limit"),
    [
        (([0, 4], [0, 1]), "source", 4, 4),
        (([0, -1], [0, 1]), "source", -1, 4),
        (([0, 1], [2, 6]), "destination", 6, 6),
        (([0, 1], [-3, 5]), "destination", -3, 6),
    ],
)
def test_check_range_names_side_block_and_limit(pairs, side, block, limit):
    with pytest.raises(BlockIndexError, match=f"{side} block {block} is out of range; this side has {limit} b") as e:
        BlockPairs(*pairs).check_range(num_src=4, num_dst=6)

    assert (e.value.block, e.value.limit) == (block, limit)


def test_check_range_takes_the_last_id_of_each_side():
    BlockPairs([3], [5]).check_range(num_src=4, num_dst=6)


@pytest.mark.parametrize("pairs", [([0, 1], [1, 2]), ([1], [1])], ids=["chain", "self"])
def test_check_disjoint_refuses_a_block_both_read_and_written(pairs):
    # W19: [0->1, 1->2] gives another result on every device that accepts it.
    with pytest.raises(BlockPairsError, match=r"block 1 is both a source and a destination; .* split the copy") as e:
        BlockPairs(*pairs).check_disjoint()

    assert e.value.block == 1


def test_runs_join_neighbours_on_both_sides():
    # Sorted by source: 0->10 1->11, then 4->20 5->21 6->22, then 9->30.
    pairs = BlockPairs([4, 1, 5, 0, 6, 9], [20, 11, 21, 10, 22, 30])

    assert list(pairs.runs()) == [(0, 10, 2), (4, 20, 3), (9, 30, 1)]


def test_runs_stop_where_only_one_side_goes_on():
    assert list(BlockPairs([0, 1, 2], [5, 7, 8]).runs()) == [(0, 5, 1), (1, 7, 2)]


@given(st.dictionaries(st.integers(0, 40), st.integers(0, 20)))
def test_runs_re_expand_to_the_pairs(sources):
    pairs = BlockPairs(sources.values(), sources.keys())

    expanded = [(src + step, dst + step) for src, dst, length in pairs.runs() for step in range(length)]

    assert sorted(expanded) == sorted(pairs)
    for (src, dst, length), (next_src, next_dst, _) in zip(list(pairs.runs()), list(pairs.runs())[1:], strict=False):
        assert (src + length, dst + length) != (next_src, next_dst)


def test_pairs_compare_by_value_and_are_unhashable():
    assert BlockPairs([1], [2]) == BlockPairs((1,), range(2, 3))
    assert BlockPairs([1], [2]) != BlockPairs([1], [3])
    assert BlockPairs([1], [2]) != BlockPairs([0], [2])
    with pytest.raises(TypeError, match="unhashable"):
        hash(BlockPairs([1], [2]))


def test_pairs_show_themselves():
    assert repr(BlockPairs([1, 4], [2, 5])) == "BlockPairs([1, 4], [2, 5])"


def test_a_range_beyond_64_bits_is_out_of_range():
    with pytest.raises(BlockIndexError, match="64 bits"):
        BlockPairs(range(2**63, 2**63 + 1), [0])


def test_a_side_without_blocks_numbers_none():
    with pytest.raises(BlockIndexError, match=r"this side has 0 blocks$"):
        BlockPairs([0], [0]).check_range(num_src=0, num_dst=1)
