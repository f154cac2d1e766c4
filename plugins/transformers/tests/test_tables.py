"""Block tables of one group, worked by hand: blocks of 4 tokens."""

from __future__ import annotations

import pytest
from cachecore_transformers.blocks import BlockAllocator
from cachecore_transformers.tables import BlockTables, Span


def make_tables(num_blocks: int = 32, window: int | None = None) -> BlockTables:
    return BlockTables(BlockAllocator(num_blocks, group="g", tier="device"), 4, window)


def test_reserve_adds_what_is_missing():
    tables = make_tables()

    assert tables.missing(2, 5) == 4  # 5 tokens fill 2 blocks, for 2 sequences
    tables.reserve(2, 5, "a test")
    assert tables.tables == [[0, 1], [2, 3]]
    assert tables.missing(2, 8) == 0
    tables.reserve(2, 9, "a test")

    assert tables.tables == [[0, 1, 4], [2, 3, 5]]


def test_span_of_a_window_starts_at_the_oldest_token_seen():
    assert make_tables(window=None).span(9, 3) == Span(0, 9, 12)
    assert make_tables(window=6).span(9, 3) == Span(4, 9, 12)  # token 9 sees 4 to 9: six tokens
    assert make_tables(window=6).span(3, 3) == Span(0, 3, 6)


def test_drop_before_releases_whole_blocks_only():
    tables = make_tables(window=6)
    tables.reserve(2, 16, "a test")

    assert tables.drop_before(7) == 2  # tokens 0 to 3, in 2 sequences; token 7 is in the second block
    assert tables.drop_before(7) == 0
    assert (tables.first, tables.tables) == (1, [[1, 2, 3], [5, 6, 7]])
    assert tables.allocator.num_used == 6


def test_truncate_counts_from_the_start_of_the_sequence():
    tables = make_tables(window=6)
    tables.reserve(1, 16, "a test")
    tables.drop_before(5)

    tables.truncate(9)  # tokens 4 to 8: blocks 1 and 2

    assert tables.tables == [[1, 2]]


def test_fork_shares_full_blocks_and_copies_the_rest():
    tables = make_tables()
    tables.reserve(2, 6, "a test")  # [0, 1] and [2, 3]; blocks 1 and 3 hold 2 tokens

    fork = tables.fork([1, 1, 1], 6)

    assert fork.sources == [3, 3]  # the first taker keeps block 3
    assert fork.copied == [1, 2]
    tables.adopt(fork, tables.allocator.take(2, "a test"))
    assert tables.tables == [[2, 3], [2, 4], [2, 5]]
    assert [tables.allocator.references(block) for block in range(6)] == [0, 0, 3, 1, 1, 1]


@pytest.mark.parametrize("keep", [False, True])
def test_fork_of_full_blocks_copies_nothing(keep):
    tables = make_tables()
    tables.reserve(1, 8, "a test")

    fork = tables.fork([0, 0], 8, keep=keep)

    assert fork.copied == []
    assert fork.tables == [[0, 1], [0, 1]]


def test_fork_beside_the_present_tables_copies_for_everyone():
    tables = make_tables()
    tables.reserve(1, 6, "a test")

    assert tables.fork([0, 0], 6, keep=True).sources == [1, 1]


def test_planning_a_fork_changes_nothing():
    tables = make_tables()
    tables.reserve(2, 6, "a test")

    tables.fork([1, 1], 6)

    assert tables.tables == [[0, 1], [2, 3]]
    assert tables.allocator.num_used == 4
