"""What a cache does with its blocks while a model runs on it."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from cachecore_transformers import CachecoreCache
from twins import DEVICE, Twins, poison, prompts, tiny_model, twins

from cachecore import AllocationError, EngineStateError, PlanError


def test_blocks_behind_the_window_go_back_to_the_allocator(make_pool):
    pool = make_pool("gemma3", num_sequences=2)

    both = twins("gemma3", pool, num_tokens=21)

    # 21 tokens, window 12: the next query sees tokens 10 to 21. Blocks of 4: full 0 to 5, sliding 2 to 5.
    assert pool.num_used() == {"sliding": 2 * 4, "full": 2 * 6}
    both.steps(11)
    # 32 tokens: full 0 to 7; the next query sees tokens 21 to 32: sliding 5 to 7.
    assert pool.num_used() == {"sliding": 2 * 3, "full": 2 * 8}
    freed = pool.groups["sliding"].allocator
    held = {block for table in both.blocks.sequences.tables["sliding"].tables for block in table}
    assert {block for block in range(freed.num_blocks) if freed.references(block)} == held


def test_a_window_never_holds_more_than_planned(make_pool):
    pool = make_pool("mistral", num_sequences=1, max_tokens=120, max_step_tokens=1)

    both = Twins("mistral", pool)
    both.call(torch.tensor([[5]], device=DEVICE))
    both.steps(100)

    # 11 tokens behind and 1 new one lie in at most 4 blocks of 4
    assert pool.groups["sliding"].allocator.peak <= 4


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_a_fork_shares_full_blocks_and_copies_one(name, make_pool):
    pool = make_pool(name, num_sequences=8)
    both = twins(name, pool, num_sequences=1)
    before = pool.num_used()

    other = both.fork()

    assert pool.num_used() == {group: count + 1 for group, count in before.items()}  # 21 tokens end in a block of 1
    both.steps(9)
    other.steps(7)
    both.steps(3)
    other.blocks.release()
    poison(pool)
    both.steps(2)


def test_sequences_fork_and_end_in_one_batch(make_pool):
    pool = make_pool("gpt_oss", num_sequences=8)
    both = twins("gpt_oss", pool, num_sequences=3)
    copied = pool.engine.stats()

    both.select([2, 0, 0, 2, 2])
    both.steps(5)
    both.select([4, 3])
    both.steps(5)

    moved = {group.group: group.copies[0].num_blocks for group in pool.engine.stats().groups}
    assert {group.group: group.copies[0].num_blocks for group in copied.groups} == {"sliding": 0, "full": 0}
    assert moved == {"sliding": 3, "full": 3}  # five sequences out of two: three copies, then none


def test_deepcopy_is_a_fork(make_pool):
    pool = make_pool("llama", num_sequences=4)
    both = twins("llama", pool, num_sequences=1)

    other = copy.deepcopy(both.blocks)

    assert other.get_seq_length() == 21
    assert other.pool is pool
    assert pool.groups["full"].allocator.num_used == 7  # 6 blocks, and a copy of the last


def test_out_of_blocks_loses_nothing(make_pool):
    pool = make_pool("gemma3", num_blocks={"full": 17, "sliding": 40})
    both = twins("gemma3", pool, num_sequences=2)
    waiting = CachecoreCache(pool)
    tiny_model("gemma3")(**prompts(1, 20), past_key_values=waiting)  # holds the other 5 blocks
    before = pool.num_used(), both.blocks.sequences.tables["full"].tables
    step = torch.full((2, 4), 9, device=DEVICE)

    with pytest.raises(AllocationError, match=r"group 'full': a step of 4 tokens in 2 sequences of 21 needs 2 more"):
        both.call(step)

    assert (pool.num_used(), both.blocks.sequences.tables["full"].tables) == before
    assert both.blocks.get_seq_length() == 21
    both.mask = both.mask[:, :21]
    waiting.release()
    both.call(step)


def test_a_fork_without_a_free_block_loses_nothing(make_pool):
    pool = make_pool("llama", num_blocks=6)
    both = twins("llama", pool, num_sequences=1)

    for fork in (both.blocks.fork, lambda: both.blocks.batch_repeat_interleave(2)):
        with pytest.raises(AllocationError, match="needs 1 more device blocks, but 0 of 6 are free"):
            fork()

    assert (both.blocks.batch_size, pool.num_free()) == (1, {"full": 0})
    both.steps(3)


def test_an_interrupted_call_is_rolled_back(make_pool):
    pool = make_pool("gemma3", num_sequences=2)
    both = twins("gemma3", pool)
    before = pool.num_used()
    model, step = tiny_model("gemma3"), torch.full((2, 6), 9, device=DEVICE)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model.model.layers[2].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(input_ids=step, past_key_values=both.blocks)
    hook.remove()
    with pytest.raises(EngineStateError, match=r"call of 6 is under way \(layers \[0, 1\] of 4 have seen it\)"):
        model(input_ids=step, past_key_values=both.blocks)
    for refused in (both.blocks.fork, both.blocks.swap_out, lambda: both.blocks.crop(-1)):
        with pytest.raises(EngineStateError, match=r"call rollback\(\)"):
            refused()

    both.blocks.rollback()

    assert pool.num_used() == before
    both.call(step)
    both.steps(3)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_crop_takes_tokens_back(name, make_pool):
    pool = make_pool(name, num_sequences=4)
    both = twins(name, pool, num_sequences=1, num_tokens=24)
    other = both.fork()  # shares blocks 0 to 5, all full

    for past in (both.blocks, both.plain):
        past.crop(-6)
    both.mask = both.mask[:, :-6]

    assert pool.groups["full"].allocator.num_used == 7  # block 4 was cut, so it was copied; block 5 is the other's
    both.steps(5)
    other.steps(5)


def test_crop_of_a_window_needs_the_past_recorded(make_pool):
    pool = make_pool("mistral", num_sequences=2)
    both = twins("mistral", pool)

    with pytest.raises(EngineStateError, match=r"group 'sliding': after removing 5 tokens .* activate_past_recording"):
        both.blocks.crop(-5)
    for past in (both.blocks, both.plain):
        past.activate_past_recording()
    both.steps(1, tokens=8)
    for past in (both.blocks, both.plain):
        past.crop(-7)
    both.mask = both.mask[:, :-7]

    both.steps(4)
    assert both.blocks.is_recording_past(0)
    with pytest.raises(ValueError, match="not 3"):
        both.blocks.crop(3)


def test_prompt_lookup_decoding_equals_plain(make_pool):
    pool = make_pool("gemma3", num_sequences=1, max_tokens=80)
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 9, 10] * 4], device=DEVICE)}
    arguments = {"max_new_tokens": 20, "do_sample": False, "prompt_lookup_num_tokens": 4}

    expected = tiny_model("gemma3").generate(**inputs, **arguments)
    got = tiny_model("gemma3").generate(**inputs, **arguments, past_key_values=CachecoreCache(pool))

    assert torch.equal(got, expected)


def test_another_batch_size_is_refused(make_pool):
    both = twins("llama", make_pool("llama", num_sequences=4))

    with pytest.raises(EngineStateError, match="holds 2 sequences, but the model was called with 3"):
        tiny_model("llama")(input_ids=torch.full((3, 1), 5, device=DEVICE), past_key_values=both.blocks)
    with pytest.raises(IndexError, match="sequence 2 does not exist; this cache holds 2"):
        both.blocks.batch_select_indices(torch.tensor([0, 2]))
    both.steps(1)


@pytest.mark.parametrize(("name", "dtype"), [("llama", torch.float64), ("deepseek_v3", torch.bfloat16)])
def test_another_dtype_than_planned_is_refused(name, dtype, make_pool):
    pool = make_pool(name, dtype=dtype)
    cache = CachecoreCache(pool)

    with pytest.raises(PlanError, match=r"layer 0: the model hands keys of .* float32 on .*, but the plan has"):
        tiny_model(name)(**prompts(1), past_key_values=cache)

    assert not any(pool.num_used().values())


def test_reset_release_and_garbage_collection_return_every_block(make_pool):
    pool = make_pool("gemma3", num_sequences=8)
    both = twins("gemma3", pool)

    both.blocks.reset()
    assert (both.blocks.get_seq_length(), both.blocks.batch_size) == (0, -1)
    tiny_model("gemma3")(**prompts(3), past_key_values=both.blocks)
    with CachecoreCache(pool) as cache:
        tiny_model("gemma3")(**prompts(2), past_key_values=cache)
    assert pool.num_used() == {"sliding": 3 * 4, "full": 3 * 6}
    del both
    gc.collect()

    assert not any(pool.num_used().values())


def test_gradients_do_not_enter_the_blocks(make_pool):
    pool = make_pool("llama")
    cache = CachecoreCache(pool)

    tiny_model("llama")(**prompts(1), past_key_values=cache)  # grad mode is on

    assert not pool.engine.block_caches.layer("k_cache", 0).requires_grad


def test_inference_mode_and_grad_mode_take_turns(make_pool):
    both = twins("llama", make_pool("llama", num_sequences=2))

    with torch.inference_mode():
        both.steps(2)
    both.steps(2)


@pytest.mark.parametrize("name", ["gemma3", "qwen3_next"])
def test_a_batch_of_which_nobody_is_left_starts_anew(name, make_pool):
    pool = make_pool(name, num_sequences=2)
    both = twins(name, pool, num_tokens=21)

    both.blocks.batch_select_indices(torch.tensor([], dtype=torch.int64))

    assert (both.blocks.get_seq_length(), both.blocks.batch_size) == (0, -1)
    assert set(pool.num_used().values()) == {0}
    again = Twins(name, pool)
    again.blocks = both.blocks
    again.call(**prompts(2))
    again.steps(2)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda cache: cache.batch_repeat_interleave(-1), PlanError),
        (lambda cache: cache.batch_repeat_interleave(1.5), TypeError),
        (lambda cache: cache.batch_select_indices(torch.tensor([0.5])), TypeError),
        (lambda cache: cache.batch_select_indices(None), TypeError),
        (lambda cache: cache.crop(1), PlanError),
        (lambda cache: cache.crop(float("nan")), TypeError),
        (lambda cache: cache.swap_out(["x"]), TypeError),
        (lambda cache: cache.swap_out(3), TypeError),
        (lambda cache: CachecoreCache(None), TypeError),
    ],
)
def test_what_is_no_change_of_a_batch_is_refused_and_changes_nothing(change, error, make_pool):
    pool = make_pool("llama", num_sequences=4)
    both = twins("llama", pool, num_sequences=2)

    with pytest.raises(error):
        change(both.blocks)

    both.steps(3)


def test_sequences_named_by_tensors_swap_back(make_pool):
    pool = make_pool("llama", num_sequences=2, num_host_blocks=32)
    both = twins("llama", pool, num_sequences=2)

    both.blocks.swap_out(torch.tensor([1]))
    both.blocks.swap_in()

    both.steps(3)
