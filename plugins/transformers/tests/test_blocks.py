"""The free list of one group."""

from __future__ import annotations

import pytest
from cachecore_transformers.blocks import BlockAllocator

from cachecore import AllocationError, BlockIndexError


def test_a_block_is_free_again_after_its_last_reference():
    blocks = BlockAllocator(3, group="full", tier="device")
    first, second = blocks.take(2, "a test")

    blocks.share([first])
    blocks.release([first, second])
    assert (blocks.num_used, blocks.references(first), blocks.references(second)) == (1, 1, 0)
    blocks.release([first])

    assert (blocks.num_used, blocks.num_free, blocks.peak) == (0, 3, 2)


def test_the_block_freed_longest_ago_is_handed_out_first():
    blocks = BlockAllocator(3, group="full", tier="device")
    blocks.release(blocks.take(1, "a test"))

    assert blocks.take(3, "a test") == [1, 2, 0]


def test_running_out_takes_nothing_and_says_what_is_missing():
    blocks = BlockAllocator(4, group="full", tier="device")
    blocks.take(3, "a test")

    with pytest.raises(
        AllocationError, match=r"group 'full': a step needs 2 more device blocks, but 1 of 4 are free"
    ) as error:
        blocks.take(2, "a step")

    assert (error.value.needed, error.value.free, error.value.group, error.value.tier) == (2, 1, "full", "device")
    assert "at least 5 device blocks" in str(error.value)
    assert blocks.num_free == 1


@pytest.mark.parametrize("operation", ["share", "release"])
def test_a_free_block_is_neither_shared_nor_released(operation):
    blocks = BlockAllocator(2, group="full", tier="host")

    with pytest.raises(BlockIndexError, match="host block 1 is free"):
        getattr(blocks, operation)([1])
