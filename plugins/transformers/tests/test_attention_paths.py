"""Which way attention goes: in the blocks, gathered and why, or refused."""

from __future__ import annotations

import copy

import pytest
import torch
from cachecore_transformers import CachecoreCache, DecodeGraph
from paged_kernels import bring
from paged_models import assert_close, paged_model, paths, prefill, steps
from transformers import DynamicCache
from twins import DEVICE, tiny_model

from cachecore import EngineStateError, PlanError


def test_a_prompt_of_one_token_is_gathered_once(make_pool):
    pool = make_pool("llama")
    bring(pool)
    cache = CachecoreCache(pool)

    steps(paged_model("llama"), cache, 3, 1)

    assert [(path.num_paged, path.num_gathered) for path in cache.attention_paths()] == [(2, 1)] * 4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpt_oss", "the model asks for attention sinks, which the kernel does not compute"),
        ("deepseek_v3", "a latent is expanded to heads before attention"),
    ],
)
def test_what_the_kernel_does_not_compute_is_gathered(name, reason, make_pool):
    pool = make_pool(name, num_sequences=2)
    bring(pool)
    cache, past = CachecoreCache(pool), DynamicCache(config=tiny_model(name).config)
    prefill(paged_model(name), cache)
    prefill(tiny_model(name), past)

    assert_close(steps(paged_model(name), cache, 14), steps(tiny_model(name), past, 14))

    assert paths(cache) == {("gathered", reason)}


def test_without_kernels_the_result_is_that_of_sdpa_bit_for_bit(make_pool):
    pool = make_pool("llama", num_sequences=2)
    name = pool.engine.backend.name
    pool.engine.backend.paged_decode_attention = None
    cache, past = CachecoreCache(pool), DynamicCache(config=tiny_model("llama").config)
    prefill(paged_model("llama"), cache)
    prefill(tiny_model("llama"), past)

    got, expected = steps(paged_model("llama"), cache, 3), steps(tiny_model("llama"), past, 3)

    assert all(torch.equal(one, two) for one, two in zip(got, expected, strict=True))
    assert paths(cache) == {("gathered", f"backend {name!r} brings no paged_decode_attention")}


def test_the_model_may_change_its_attention_at_any_time(make_pool):
    pool = make_pool("llama", num_sequences=2)
    bring(pool)
    model = copy.deepcopy(paged_model("llama"))
    cache, past = CachecoreCache(pool), DynamicCache(config=model.config)
    prefill(model, cache)
    prefill(tiny_model("llama"), past)
    seen = []

    for name in ("cachecore", "sdpa", "cachecore", "eager"):
        model.set_attn_implementation(name)
        assert_close(steps(model, cache, 1), steps(tiny_model("llama"), past, 1))
        seen.append({path.path for path in cache.attention_paths()})

    assert seen == [{"paged"}, {"gathered"}, {"paged"}, {"gathered"}]
    assert paths(cache) == {
        ("gathered", "the model's attention is 'eager'; call model.set_attn_implementation('cachecore')")
    }


def test_another_model_on_the_same_cache_is_noticed(make_pool):
    pool = make_pool("llama", num_sequences=2)
    bring(pool)
    cache = CachecoreCache(pool)
    prefill(paged_model("llama"), cache)

    steps(paged_model("llama"), cache, 1)
    cache.crop(-1)
    with pytest.raises(EngineStateError, match="layer 0 left its keys and values in the blocks"):
        steps(tiny_model("llama"), cache, 1)

    cache.rollback()
    past = DynamicCache(config=tiny_model("llama").config)
    prefill(tiny_model("llama"), past)
    for model, path in (("plain", "gathered"), ("paged", "gathered"), ("paged", "paged")):
        chosen = tiny_model("llama") if model == "plain" else paged_model("llama")
        assert_close(steps(chosen, cache, 1), steps(tiny_model("llama"), past, 1))
        assert {each for each, _ in paths(cache)} == {path}


def test_an_interrupted_step_is_forgotten(make_pool):
    pool = make_pool("llama", num_sequences=2)
    bring(pool)
    model = copy.deepcopy(paged_model("llama"))
    cache, past = CachecoreCache(pool), DynamicCache(config=model.config)
    prefill(model, cache)
    prefill(tiny_model("llama"), past)
    projection = model.model.layers[1].self_attn.o_proj

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    handle = projection.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        steps(model, cache, 1)
    handle.remove()
    cache.rollback()

    assert_close(steps(model, cache, 4), steps(tiny_model("llama"), past, 4))


def test_a_step_may_be_prepared_before_the_call(make_pool):
    """As for a captured graph: blocks are taken and tables stand, as wide as they may get, when the model runs."""
    pool = make_pool("llama", num_sequences=2)
    bring(pool)
    cache, past = CachecoreCache(pool), DynamicCache(config=tiny_model("llama").config)
    prefill(paged_model("llama"), cache)
    prefill(tiny_model("llama"), past)
    for count in range(4):
        places = cache.sequences.prepare_step()
        if count == 1:
            cache.batch_select_indices(torch.tensor([1, 0], device=DEVICE))
            past.batch_select_indices(torch.tensor([1, 0], device=DEVICE))

        assert_close(steps(paged_model("llama"), cache, 1), steps(tiny_model("llama"), past, 1))

        assert places == cache.sequences.prepare_step()
    assert cache.get_seq_length() == 25


@pytest.mark.parametrize(
    ("name", "attention", "prompt", "told"),
    [
        ("llama", "sdpa", True, "the model's attention is 'sdpa'"),
        ("llama", "cachecore", False, "the cache is empty"),
        ("gemma3", "cachecore", True, r"layer 0 \(sliding_attention\) has a window"),
        ("falcon_h1", "cachecore", True, "has states"),
        pytest.param(
            *("llama", "cachecore", True, "graphs are for CUDA"),
            marks=pytest.mark.skipif(
                DEVICE.startswith("cuda"), reason="refused on other devices than CUDA, which this is"
            ),
        ),
    ],
)
def test_what_cannot_be_captured_is_refused(name, attention, prompt, told, make_pool):
    model = copy.deepcopy(tiny_model(name))
    model.set_attn_implementation(attention)
    cache = CachecoreCache(make_pool(name, num_sequences=2))
    if prompt:
        prefill(model, cache)

    with pytest.raises(EngineStateError, match=told):
        DecodeGraph(model, cache)


def test_sparse_attention_is_refused(make_pool):
    pool = make_pool("deepseek_v32", num_sequences=2)
    cache = CachecoreCache(pool)

    with pytest.raises(PlanError, match=r"layer 0\) leaves it to attention to select tokens by indices"):
        steps(paged_model("deepseek_v32"), cache, 1)


def test_tables_are_uploaded_when_they_change(make_pool):
    pool = make_pool("llama", block_size=4)
    bring(pool)
    cache = CachecoreCache(pool)
    steps(paged_model("llama"), cache, 2, 1)
    tables = cache.sequences.steps._tables["full"]
    uploads = []
    upload = tables._upload
    tables._upload = lambda rows: (uploads.append(cache.get_seq_length()), upload(rows))

    steps(paged_model("llama"), cache, 10, 1)

    # The fifth and the ninth token are the first of a block.
    assert uploads == [5, 9]
