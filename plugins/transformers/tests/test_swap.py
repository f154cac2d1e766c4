"""Sequences on the host tier and back."""

from __future__ import annotations

import pytest
from cachecore_transformers import CachecoreCache
from twins import poison, twins

from cachecore import AllocationError, EngineStateError

HOST = {"num_host_blocks": {"full": 20, "sliding": 20}}


def test_swapping_frees_device_blocks_and_back_frees_host_blocks(make_pool):
    pool = make_pool("gemma3", num_sequences=4, **HOST)
    both = twins("gemma3", pool)

    out = both.blocks.swap_out()

    assert {group: len(pairs) for group, pairs in out.items()} == {"sliding": 8, "full": 12}
    assert pool.num_used() == {"sliding": 0, "full": 0}
    assert pool.num_used(host=True) == {"sliding": 8, "full": 12}
    poison(pool)
    back = both.blocks.swap_in()
    assert {group: len(pairs) for group, pairs in back.items()} == {"sliding": 8, "full": 12}
    assert set(back["full"].dst).isdisjoint(out["full"].src)
    assert pool.num_used(host=True) == {"sliding": 0, "full": 0}
    both.steps(5)


def test_one_sequence_swaps_while_others_stay(make_pool):
    pool = make_pool("gemma3", num_sequences=6, **HOST)
    both = twins("gemma3", pool, num_sequences=3)

    both.blocks.swap_out([1])
    assert pool.num_used() == {"sliding": 8, "full": 12}
    poison(pool)
    with pytest.raises(EngineStateError, match=r"a forward call: sequences \[1\] are on the host; call swap_in"):
        both.call(both.mask[:, :1])
    both.mask = both.mask[:, :21]
    with pytest.raises(EngineStateError, match="sequence 1 is on the host already"):
        both.blocks.swap_out([1])
    with pytest.raises(EngineStateError, match="sequence 0 is on the device"):
        both.blocks.swap_in([0])
    with pytest.raises(IndexError, match="sequence 3 does not exist"):
        both.blocks.swap_out([3])
    both.blocks.swap_in()

    both.steps(5)


def test_shared_blocks_move_once_and_stay_shared(make_pool):
    pool = make_pool("llama", num_sequences=8, num_host_blocks=20)
    both = twins("llama", pool, num_sequences=1)
    both.select([0, 0, 0])
    assert pool.num_used() == {"full": 5 + 3}

    out = both.blocks.swap_out()
    assert len(out["full"]) == 5 + 3
    both.blocks.swap_in()

    assert pool.num_used() == {"full": 5 + 3}
    both.steps(6)


def test_blocks_shared_with_another_cache_stay_on_the_device(make_pool):
    pool = make_pool("llama", num_sequences=8, num_host_blocks=20)
    both = twins("llama", pool, num_sequences=1)
    other = both.fork()

    both.blocks.swap_out()

    assert pool.num_used() == {"full": 6}
    poison(pool)
    other.steps(4)
    both.blocks.swap_in()
    both.steps(4)


def test_too_few_host_blocks_move_nothing(make_pool):
    pool = make_pool("gemma3", num_sequences=4, num_host_blocks={"sliding": 20, "full": 11})
    both = twins("gemma3", pool)

    with pytest.raises(AllocationError, match=r"group 'full': swap_out\(\) needs 12 more host blocks, but 11 of 11"):
        both.blocks.swap_out()

    assert pool.num_used(host=True) == {"sliding": 0, "full": 0}
    both.steps(2)


def test_too_few_device_blocks_leave_the_sequence_on_the_host(make_pool):
    pool = make_pool("llama", num_blocks=10, num_host_blocks=10)
    both = twins("llama", pool, num_sequences=1)
    both.blocks.swap_out()
    with CachecoreCache(pool) as other:
        both.model(input_ids=both.mask[:, :20], past_key_values=other)
        with pytest.raises(AllocationError, match=r"swap_in\(\) needs 6 more device blocks, but 5 of 10 are free"):
            both.blocks.swap_in()

    both.blocks.swap_in()
    both.steps(2)


def test_a_pool_without_host_blocks_cannot_swap(make_pool):
    both = twins("llama", make_pool("llama", num_sequences=2))

    with pytest.raises(AllocationError, match="needs 12 more host blocks, but 0 of 0 are free"):
        both.blocks.swap_out()
    both.steps(1)


def test_releasing_a_swapped_cache_returns_both_tiers(make_pool):
    pool = make_pool("gemma3", num_sequences=4, **HOST)
    both = twins("gemma3", pool)
    both.blocks.swap_out([1])

    both.blocks.release()

    assert not any(pool.num_used().values())
    assert not any(pool.num_used(host=True).values())
