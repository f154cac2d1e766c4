"""Forward calls that end halfway: rollback() forgets them, and nothing is counted that was not written."""

from __future__ import annotations

from typing import Any

import cachecore_transformers.layers as layers
import pytest
import torch
from cachecore_transformers import CachecoreCache
from cachecore_transformers.blocks import BlockAllocator
from cachecore_transformers.sequences import Sequences
from cachecore_transformers.states import BatchStates
from cachecore_transformers.steps import Steps
from twins import DEVICE, Twins, prompts, tiny_model, twins

from cachecore import AllocationError, EngineStateError

STEP = torch.full((2, 1), 9, device=DEVICE)


BIND = BatchStates.bind


def once(call: Any, at: int, error: BaseException) -> Any:
    """Call number ``at`` raises instead, the others do as before."""
    left = [at]

    def counted(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise error
        return call(*arguments, **options)

    return counted


def step(both: Twins, past: Any) -> None:
    """One token with one of the two caches, as ``both.call(STEP)`` brings it to each."""
    mask = torch.cat([both.mask, torch.ones_like(STEP)], dim=1)
    positions = mask.sum(1, keepdim=True) - 1
    with torch.no_grad():
        both.model(input_ids=STEP, attention_mask=mask, position_ids=positions, past_key_values=past)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.OutOfMemoryError("no room to gather")])
@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("what", ["write", "read"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_layer_that_did_not_finish_is_not_counted(name, what, number, error, make_pool, monkeypatch):
    # keys and values of four layers, so 6 and 7 are of the last one
    both = twins(name, make_pool(name, num_sequences=2))
    before = both.blocks.get_seq_length()
    with monkeypatch.context() as patch:
        patch.setattr(layers, what, once(getattr(layers, what), number, error))
        with pytest.raises(type(error)):
            step(both, both.blocks)
        with pytest.raises(EngineStateError, match=r"Call rollback\(\) on the cache"):
            step(both, both.blocks)

    both.blocks.rollback()

    assert both.blocks.get_seq_length() == before
    both.call(STEP)
    both.steps(3)


@pytest.mark.parametrize("number", range(4))
def test_states_that_were_not_kept_are_not_counted(number, make_pool, monkeypatch):
    # a convolution's and a recurrent state of the last two layers, from the last one on
    pool = make_pool("mamba", num_sequences=2)
    both = Twins("mamba", pool)
    total = []
    with monkeypatch.context() as patch:
        patch.setattr(BatchStates, "bind", lambda self, name: total.append(name) or BIND(self, name))
        tiny_model("mamba")(**prompts(2), cache_params=CachecoreCache(pool))
    with monkeypatch.context() as patch:
        patch.setattr(BatchStates, "bind", once(BIND, len(total) - 1 - number, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            both.model(**prompts(2), cache_params=both.blocks)

    both.blocks.rollback()

    assert both.blocks.sequences.length == 0
    both.call(**prompts(2))
    both.steps(2)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), AllocationError("no blocks")])
def test_states_overwritten_before_tokens_are_counted_are_not_rolled_back(error, make_pool, monkeypatch):
    both = twins("falcon_h1", make_pool("falcon_h1", num_sequences=4))
    kept = both.fork()
    with monkeypatch.context() as patch:
        # the first layer's convolution is overwritten in place before its attention says how many tokens there are
        patch.setattr(Sequences, "_reserve", once(Sequences._reserve, 1, error))
        with pytest.raises(type(error)):
            step(both, both.blocks)

    with pytest.raises(EngineStateError, match=r"layers \[0\] have overwritten their states"):
        both.blocks.rollback()
    both.blocks.reset()
    kept.steps(2)


@pytest.mark.parametrize("what", [(Steps, "forget"), (BlockAllocator, "release"), (BatchStates, "flush")])
@pytest.mark.parametrize("number", range(3))
def test_an_interruption_while_tokens_are_counted_counts_them_once(what, number, make_pool, monkeypatch):
    owner, method = what
    both = twins("gemma3", make_pool("gemma3", num_sequences=2))
    both.steps(3)
    length = both.blocks.get_seq_length()
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, once(getattr(owner, method), number, KeyboardInterrupt()))
        try:
            step(both, both.blocks)
        except KeyboardInterrupt:
            both.blocks.rollback()

    if both.blocks.get_seq_length() == length:
        step(both, both.blocks)
    assert both.blocks.get_seq_length() == length + 1
    step(both, both.plain)
    both.mask = torch.cat([both.mask, torch.ones_like(STEP)], dim=1)
    both.steps(2)


def test_blocks_that_are_released_stand_in_no_table(make_pool, monkeypatch):
    both = twins("gemma3", make_pool("gemma3", num_sequences=2))
    tables = both.blocks.sequences.tables["sliding"]

    def interrupt(self: BlockAllocator, blocks: list[int]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BlockAllocator, "release", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tables.drop_before((tables.first + 1) * tables.block_size)
        with pytest.raises(KeyboardInterrupt):
            tables.truncate((tables.first + 1) * tables.block_size)

    assert [len(table) for table in tables.tables] == [1, 1]
    both.blocks.release()
    assert not any(tables.allocator.references(block) for table in tables.tables for block in table)


def test_crop_of_no_tokens_leaves_blocks_on_the_host_alone(make_pool):
    pool = make_pool("gemma3", num_sequences=2, num_host_blocks={"full": 20, "sliding": 20})
    both = twins("gemma3", pool)
    both.blocks.layers[0].activate_past_recording()
    both.steps(9)
    both.blocks.swap_out([1])
    before = pool.num_used(), pool.num_used(host=True)

    with pytest.raises(EngineStateError, match=r"crop\(\): sequences \[1\] are on the host; call swap_in\(\) first"):
        both.blocks.crop(0)

    assert (pool.num_used(), pool.num_used(host=True)) == before
    both.blocks.swap_in()
    both.blocks.crop(0)
    both.steps(2)
