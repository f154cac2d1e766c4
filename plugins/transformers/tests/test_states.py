"""Models with states or indexer keys: bitwise the logits of plain transformers, on every layout."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from cachecore_torch_default import TorchBackend
from cachecore_transformers import CachecoreCache, plan_model
from tiny_models import INDEXED_MODELS, STATE_MODELS
from twins import (
    DEVICE,
    FORKS,
    MODES,
    NUM_NEW,
    Twins,
    assert_equal_runs,
    group_names,
    poison,
    prompts,
    reference,
    run,
    tiny_config,
    tiny_model,
    twins,
)

from cachecore import (
    AllocationError,
    BackendInfo,
    EngineStateError,
    PluginRegistry,
    StandardLayoutPolicy,
    hookimpl,
)
from cachecore.layout_kinds import contiguous_layout, contiguous_state_layout
from cachecore.registry import PluginRecord

HYBRIDS = ("qwen3_next", "falcon_h1", "zaya", "lfm2", "deepseek_v4")


class ContiguousPolicy(StandardLayoutPolicy):
    """A dense pool for every tensor and state, as some accelerators want them."""

    name = "contiguous"

    def select_block_layout(self, specs, geometry, hints):
        return contiguous_layout(specs)

    def select_state_layout(self, specs, hints):
        return contiguous_state_layout(specs)


class ContiguousPlugin:
    @hookimpl
    def cachecore_register_backends(self) -> list[BackendInfo]:
        def load() -> TorchBackend:
            return TorchBackend(ContiguousPolicy())

        return [BackendInfo("contiguous", ("*",), 500, lambda device: None, ContiguousPolicy, load)]


def layout_options(layout: str) -> dict[str, Any]:
    if layout == "packed":
        return {}
    registry = PluginRegistry()
    registry.load_entry_points()
    registry.register(ContiguousPlugin(), PluginRecord("contiguous", "a-test", "0"))
    return {"registry": registry, "backend": "contiguous"}


@pytest.mark.parametrize(("layout", "num_sequences"), [("packed", 1), ("packed", 3), ("contiguous", 3)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STATE_MODELS + INDEXED_MODELS)
def test_generate_equals_plain_transformers(name, mode, layout, num_sequences, make_pool):
    total = num_sequences * FORKS[mode]
    pool = make_pool(
        name,
        num_sequences=2 * total,  # room for blocks and slots to come back elsewhere
        kernel_block_size=2,
        max_tokens=21 + NUM_NEW,
        num_host_blocks=dict.fromkeys(group_names(name), total * 12),
        **layout_options(layout),
    )
    assert {plan.layout.kind.startswith("contiguous") for plan in pool.engine.plans} == {layout == "contiguous"}
    cache = CachecoreCache(pool)

    def swap() -> None:
        gone = {group: set(pairs.src) for group, pairs in cache.swap_out().items()}
        assert not any(pool.num_used().values())
        poison(pool)
        back = {group: set(pairs.dst) for group, pairs in cache.swap_in().items()}
        assert all(back[group].isdisjoint(gone[group]) for group in gone), "blocks came back where they were"

    got = run(tiny_model(name), cache, mode, num_sequences, swap)

    assert_equal_runs(got, reference(name, mode, num_sequences))
    cache.release()
    assert not any(pool.num_used().values())
    assert not any(pool.num_used(host=True).values())


@pytest.mark.parametrize("name", STATE_MODELS + INDEXED_MODELS)
def test_prefill_in_pieces_and_steps_of_several_tokens(name, make_pool):
    both = Twins(name, make_pool(name, num_sequences=2))
    inputs = prompts(2)

    for start, stop in ((0, 2), (2, 3), (3, 19), (19, 21)):
        both.call(**{key: value[:, start:stop] for key, value in inputs.items()})
    both.steps(3, tokens=4)
    both.steps(2)


@pytest.mark.parametrize("name", STATE_MODELS + INDEXED_MODELS)
def test_sequences_fork_and_end_in_one_batch(name, make_pool):
    both = twins(name, make_pool(name, num_sequences=8), num_sequences=3)

    both.select([2, 0, 0, 2, 2])
    both.steps(3)
    both.select([4, 3])
    poison(both.blocks.pool)
    both.steps(3, tokens=2)
    both.steps(2)


@pytest.mark.parametrize("name", STATE_MODELS + INDEXED_MODELS)
def test_a_fork_goes_its_own_way(name, make_pool):
    pool = make_pool(name, num_sequences=8)
    both = twins(name, pool)
    before = pool.num_used()

    other = both.fork()

    assert "state" not in before or pool.num_used()["state"] == 2 * before["state"] == 4
    both.steps(5)
    other.steps(3)
    other.blocks.release()
    poison(pool)
    both.steps(2)


@pytest.mark.parametrize("name", HYBRIDS)
def test_one_sequence_swaps_while_others_stay(name, make_pool):
    pool = make_pool(name, num_sequences=6, num_host_blocks=dict.fromkeys(group_names(name), 40))
    both = twins(name, pool, num_sequences=3)

    out = both.blocks.swap_out([1])
    assert len(out["state"]) == 1
    assert (pool.num_used()["state"], pool.num_used(host=True)["state"]) == (2, 1)
    poison(pool)
    with pytest.raises(EngineStateError, match=r"sequences \[1\] are on the host; call swap_in"):
        both.call(torch.full((3, 1), 5, device=DEVICE))
    both.mask = both.mask[:, :21]
    both.blocks.swap_in()

    both.steps(4)


@pytest.mark.parametrize("name", HYBRIDS)
def test_new_sequences_start_from_zeros(name, make_pool):
    pool = make_pool(name, num_sequences=2)
    with CachecoreCache(pool) as cache:
        tiny_model(name)(**prompts(2), past_key_values=cache)
    poison(pool)

    both = Twins(name, pool)
    both.call(torch.full((2, 1), 9, device=DEVICE))  # one token fills no convolution and no compressed entry
    both.steps(5)


def test_layers_without_states_own_no_bytes_in_a_slot():
    plan = plan_model(tiny_config("nemotron_h"), dtype="bfloat16")["state"]

    # of 4 layers 0 and 3: convolution 4 * 16 + 2 * 2 * 8 = 96 channels of 4 in bfloat16, heads 4 x 16 x 8 in float32
    assert [(spec.name, spec.row_ids) for spec in plan.specs] == [("conv_state", (0, 3)), ("recurrent_state", (0, 3))]
    assert plan.slot_nbytes() == 2 * (96 * 4 * 2 + 4 * 16 * 8 * 4)


def test_indexer_keys_share_the_blocks_of_the_latents():
    plan = plan_model(tiny_config("glm_moe_dsa"), dtype="float32", block_size=4).only()

    assert [(spec.name, spec.shape, spec.row_ids) for spec in plan.specs] == [
        ("k_cache", (4, 1, 32), (0, 1, 2)),
        ("v_cache", (4, 1, 0), (0, 1, 2)),
        ("index_k_cache", (4, 16), (0, 2)),  # layer 1 shares the selection of layer 0
    ]
    assert plan.specs[2].per_row_contiguous


def test_compressed_entries_have_blocks_of_their_own():
    plans = plan_model(tiny_config("deepseek_v4"), dtype="float32", block_size=4)

    assert plans.names == ("sliding", "compressed_8", "compressed_4", "state")
    assert plans["compressed_8"].geometry.logical_block_size == 32  # 4 entries of 8 tokens
    assert [(spec.name, spec.shape, spec.row_ids) for spec in plans["compressed_4"].specs] == [
        ("compressor_cache", (4, 16), (1, 3)),
        ("indexer_cache", (4, 16), (1, 3)),
    ]
    assert [spec.shape for spec in plans["sliding"].specs] == [(4, 1, 16), (4, 1, 0)]  # keys are values


def test_out_of_blocks_loses_no_state(make_pool):
    pool = make_pool("qwen3_next", num_blocks={"full": 6, "state": 2})
    both = twins("qwen3_next", pool, num_sequences=1)

    with pytest.raises(AllocationError, match=r"group 'full': a step of 4 tokens in 1 sequences of 21 needs 1 more"):
        both.call(torch.full((1, 4), 9, device=DEVICE))
    both.mask = both.mask[:, :21]

    both.steps(3)
    with pytest.raises(AllocationError, match=r"a step of 1 tokens in 1 sequences of 24 needs 1 more"):
        both.steps(1)


def test_out_of_slots_says_so(make_pool):
    pool = make_pool("mamba", num_blocks={"state": 2})

    with pytest.raises(AllocationError, match=r"group 'state': .* needs 3 more device slots, but 2 of 2 are free"):
        twins("mamba", pool, num_sequences=3)
    assert pool.num_used() == {"state": 0}


def test_a_call_interrupted_before_it_wrote_is_rolled_back(make_pool):
    both = twins("qwen3_next", make_pool("qwen3_next", num_sequences=4))

    with pytest.raises(RuntimeError, match="size"):
        both.model(input_ids=torch.full((3, 1), 5, device=DEVICE), past_key_values=both.blocks)  # holds two
    both.blocks.rollback()

    both.steps(3)


def test_a_call_interrupted_after_it_wrote_is_refused(make_pool):
    pool = make_pool("qwen3_next", num_sequences=4)
    both = twins("qwen3_next", pool)
    kept = both.fork()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = both.model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        both.model(input_ids=torch.full((2, 1), 5, device=DEVICE), past_key_values=both.blocks)
    hook.remove()
    with pytest.raises(EngineStateError, match=r"call of 1 is under way \(layers \[0\] of 4 have seen it\)"):
        both.model(input_ids=torch.full((2, 1), 5, device=DEVICE), past_key_values=both.blocks)
    with pytest.raises(EngineStateError, match=r"layers \[0\] have overwritten their states"):
        both.blocks.rollback()

    both.blocks.reset()
    kept.steps(3)


def test_an_interrupted_prefill_is_rolled_back(make_pool):
    pool = make_pool("falcon_h1", num_sequences=2)
    both = Twins("falcon_h1", pool)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    hook = both.model.model.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        both.model(**prompts(2), past_key_values=both.blocks)
    hook.remove()
    both.blocks.rollback()

    assert not any(pool.num_used().values())
    both.call(**prompts(2))
    both.steps(2)


@pytest.mark.parametrize("name", ["lfm2", "falcon_h1", "deepseek_v4"])
def test_states_take_no_tokens_back(name, make_pool):
    both = twins(name, make_pool(name, num_sequences=2))

    with pytest.raises(EngineStateError, match=r"crop\(\): states cannot take tokens back"):
        both.blocks.crop(-1)
    with pytest.raises(EngineStateError, match="keeps states, which cannot take tokens back"):
        both.blocks.activate_past_recording()
    assert not both.blocks.is_croppable
    both.blocks.crop(0)
    both.steps(2)


def test_states_are_there_to_look_at(make_pool):
    both = twins("falcon_h1", make_pool("falcon_h1", num_sequences=4))
    both.select([1, 0])
    both.steps(1)

    for ours, plain in zip(both.blocks.layers, both.plain.layers, strict=True):
        assert torch.equal(ours.conv_states[0], plain.conv_states[0])
        assert torch.equal(ours.recurrent_states[0], plain.recurrent_states[0])
        assert ours.has_previous_state == plain.has_previous_state == {0: True}
    assert both.blocks.is_linear == both.plain.is_linear
    assert both.blocks.get_seq_length() == both.plain.get_seq_length()
    with pytest.raises(ValueError, match="keeps no states"):
        twins("llama", make_pool("llama")).blocks.get_conv_state(0)


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1", "lfm2"])
def test_inference_mode_and_grad_mode_take_turns(name, make_pool):
    pool = make_pool(name, num_sequences=4)
    both = twins(name, pool)

    for select in ([0, 1], [1, 0]):  # views of slots, then copies
        both.select(select)
        with torch.inference_mode():
            both.steps(2)
        both.steps(2)
        token = torch.full((2, 1), 5, device=DEVICE)
        for past in (both.blocks, both.plain):
            both.model(input_ids=token, past_key_values=past)  # grad mode is on
        both.mask = torch.cat([both.mask, torch.ones_like(token)], dim=1)
    spec = pool.engine.plans["state"].specs[0]
    assert not pool.engine.states.state_caches.layer(spec.name, spec.row_ids[0]).requires_grad


def test_garbage_collection_returns_slots(make_pool):
    pool = make_pool("mamba2", num_sequences=4)
    both = twins("mamba2", pool)
    other = copy.deepcopy(both.blocks)
    assert pool.num_used() == {"state": 4}

    del both, other
    gc.collect()

    assert pool.num_used() == {"state": 0}
