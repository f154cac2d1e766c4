"""Attention ``"cachecore"``: steps of one token read the blocks, and everything else is as it was."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from cachecore_transformers import CachecoreCache, DecodeGraph, plan_model
from paged_kernels import KERNELS, bring
from transformers import DynamicCache
from twins import DEVICE, FORKS, NUM_NEW, group_names, poison, prompts, reference, run, tiny_config, tiny_model

from cachecore import CachePlanSet, EngineStateError, LayoutHints, PlanError, StandardLayoutPolicy, plan_from_specs

PAGED = ("llama", "mistral", "gemma3", "llama4", "gemma4", "falcon_h1", "zaya")
TOLERANCE = 2e-5
"""Of float32 logits of about 1: the sums are made in another order."""


@cache
def paged_model(name: str):
    """A tiny model whose attention is ``"cachecore"``."""
    model = copy.deepcopy(tiny_model(name))
    model.set_attn_implementation("cachecore")
    return model


def paths(cache: CachecoreCache) -> set[tuple[str, str | None]]:
    return {(path.path, path.reason) for path in cache.attention_paths()}


def steps(model, past, num_new: int, num_sequences: int = 2, mask: torch.Tensor | None = None) -> list[torch.Tensor]:
    """Logits of steps with tokens that do not depend on them."""
    generator = torch.Generator().manual_seed(3)
    logits = []
    for _ in range(num_new):
        ids = torch.randint(3, 128, (num_sequences, 1), generator=generator).to(DEVICE)
        with torch.no_grad():
            logits.append(model(ids, past_key_values=past, attention_mask=mask).logits)
    return logits


def prefill(model, past, num_sequences: int = 2) -> None:
    with torch.no_grad():
        model(prompts(num_sequences)["input_ids"], past_key_values=past)


def assert_close(got, expected) -> None:
    assert len(got) == len(expected)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("pages_per_block", [1, 2])
@pytest.mark.parametrize("mode", ["greedy", "beam", "parallel"])
@pytest.mark.parametrize("name", PAGED)
def test_generate_gives_the_same_tokens_with_a_swap_halfway(name, mode, pages_per_block, make_pool):
    total = 3 * FORKS[mode]
    pool = make_pool(
        name,
        num_sequences=2 * total,
        block_size=4 * pages_per_block,
        kernel_block_size=4,
        max_tokens=21 + NUM_NEW,
        num_host_blocks=dict.fromkeys(group_names(name), total * 16),
    )
    bring(pool)
    cache = CachecoreCache(pool)

    def swap() -> None:
        cache.swap_out()
        poison(pool)
        cache.swap_in()

    got = run(paged_model(name), cache, mode, 3, swap)

    expected = reference(name, mode, 3)
    assert torch.equal(got.sequences, expected.sequences)
    assert_close(got.logits, expected.logits)
    assert paths(cache) == {("paged", None)}
    assert all(path.num_gathered == 0 for path in cache.attention_paths())


def contiguous(plans: CachePlanSet) -> CachePlanSet:
    plan = plans.only()
    specs = [replace(spec, per_row_contiguous=True) for spec in plan.specs]
    return replace(plans, groups=(plan_from_specs(specs, plan.geometry, StandardLayoutPolicy()),))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("layout", ["packed", "contiguous", "block-major"])
def test_logits_of_every_layout_against_float64(layout, kernels, make_pool):
    hints = LayoutHints(one_run_per_block=layout == "block-major")
    plans = plan_model(tiny_config("llama"), dtype="float32", block_size=8, kernel_block_size=4, hints=hints)
    if layout == "contiguous":
        plans = contiguous(plans)
    assert plans.only().layout.kind == layout
    pool = make_pool("llama", plans=plans, num_sequences=2)
    bring(pool, kernels)
    exact = copy.deepcopy(tiny_model("llama")).double()
    past, expected = CachecoreCache(pool), DynamicCache(config=exact.config)
    prefill(paged_model("llama"), past)
    prefill(exact, expected)

    got = steps(paged_model("llama"), past, 12)

    assert_close([one.double() for one in got], steps(exact, expected, 12))
    assert paths(past) == {("paged", None)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_two_bytes_are_as_near_to_float64_as_plain_transformers(dtype, make_pool):
    pool = make_pool("llama", dtype=dtype, num_sequences=2)
    bring(pool, "triton")
    models = {"exact": copy.deepcopy(tiny_model("llama")).double()}
    models |= {"plain": copy.deepcopy(tiny_model("llama")).to(dtype), "paged": paged_model("llama")}
    models["paged"] = copy.deepcopy(models["paged"]).to(dtype)
    logits = {}
    for name, model in models.items():
        past = CachecoreCache(pool) if name == "paged" else DynamicCache(config=model.config)
        prefill(model, past)
        logits[name] = torch.stack([one.double() for one in steps(model, past, 8)])

    error = {name: float((logits[name] - logits["exact"]).norm()) for name in ("plain", "paged")}

    assert error["paged"] <= 1.5 * error["plain"]


def test_forks_selections_and_taking_tokens_back(make_pool):
    pool = make_pool("gemma3", num_sequences=8)
    bring(pool)
    model, plain = paged_model("gemma3"), tiny_model("gemma3")
    cache, past = CachecoreCache(pool), DynamicCache(config=plain.config)
    prefill(model, cache)
    prefill(plain, past)
    cache.activate_past_recording()
    past.activate_past_recording()
    assert_close(steps(model, cache, 3), steps(plain, past, 3))

    with cache.fork() as other:
        assert_close(steps(model, other, 2), steps(plain, copy.deepcopy(past), 2))
        assert paths(other) == {("paged", None)}
        assert all(path.num_gathered == 0 for path in other.attention_paths())
    for each in (cache, past):
        each.batch_select_indices(torch.tensor([1, 1, 0], device=DEVICE))
        each.crop(-2)
    assert_close(steps(model, cache, 9, 3), steps(plain, past, 9, 3))
    assert all(path.num_gathered == 0 for path in cache.attention_paths())


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


def test_soft_capped_scores_are_computed_as_eager_does(make_pool):
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    values = {name: getattr(tiny_config("llama"), name) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    config = Gemma2Config(
        **values, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=12,
        attn_logit_softcapping=0.5, query_pre_attn_scalar=1,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).to(DEVICE).eval()
    logits = {}
    for name in ("eager", "cachecore"):
        model.set_attn_implementation(name)
        past = DynamicCache(config=config)
        prefill(model, past)
        logits[name] = steps(model, past, 3)

    assert_close(logits["cachecore"], logits["eager"])


def test_masks_of_any_form(make_pool):
    """Pads in the middle are masked in the kernel; a mask that is added to the scores is not for it."""
    pool = make_pool("llama", num_sequences=4)
    bring(pool)
    model, plain = paged_model("llama"), tiny_model("llama")
    mask = torch.ones(2, 22, dtype=torch.int64, device=DEVICE)
    mask[0, 5:9] = 0
    added = torch.zeros(2, 1, 1, 22, device=DEVICE).masked_fill(mask[:, None, None] == 0, -1e30)
    for each, reason in ((mask, None), (added, "the mask is (2, 1, 1, 22) of torch.float32; the kernel takes bool")):
        cache, past = CachecoreCache(pool), DynamicCache(config=plain.config)
        prefill(model, cache)
        prefill(plain, past)

        assert_close(steps(model, cache, 1, mask=each), steps(plain, past, 1, mask=each))

        for path in cache.attention_paths():
            assert (path.reason or "").startswith(reason or "")
            assert path.path == ("gathered" if reason else "paged")
        cache.release()


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
            marks=pytest.mark.skipif(DEVICE.startswith("cuda"), reason="runs there"),
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
