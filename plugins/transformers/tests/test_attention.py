"""Attention ``"cachecore"``: what is computed in the blocks is what plain transformers computes."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from cachecore_transformers import CachecoreCache, plan_model
from paged_kernels import KERNELS, bring
from paged_models import assert_close, paged_model, paths, prefill, steps
from transformers import DynamicCache
from twins import DEVICE, FORKS, NUM_NEW, group_names, poison, reference, run, tiny_config, tiny_model

from cachecore import CachePlanSet, LayoutHints, StandardLayoutPolicy, plan_from_specs
from cachecore.layout_kinds import block_major_layout

PAGED = ("llama", "mistral", "gemma3", "llama4", "gemma4", "falcon_h1", "zaya")


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


class WholeBlocks(StandardLayoutPolicy):
    """The standard policy, but an entry is a whole block, as a vendor may choose."""

    def select_block_layout(self, specs, geometry, hints):
        return block_major_layout(specs, geometry.pages_per_block)


def laid_out(plans: CachePlanSet, layout: str) -> CachePlanSet:
    plan = plans.only()
    policy = WholeBlocks() if layout == "block-major" else StandardLayoutPolicy()
    specs = [replace(spec, per_row_contiguous=layout == "contiguous") for spec in plan.specs]
    hints = LayoutHints(one_run_per_block=layout == "page-major")
    return replace(plans, groups=(plan_from_specs(specs, plan.geometry, policy, hints=hints),))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("layout", ["packed", "contiguous", "page-major", "block-major"])
def test_logits_of_every_layout_against_float64(layout, kernels, make_pool):
    plans = laid_out(plan_model(tiny_config("llama"), dtype="float32", block_size=8, kernel_block_size=4), layout)
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


@pytest.mark.parametrize(("name", "length"), [("llama", 22), ("mistral", 12)])
def test_masks_of_any_form(name, length, make_pool):
    """Pads in the middle are masked in the kernel; a mask that is added to the scores is not for it."""
    pool = make_pool(name, num_sequences=4)
    bring(pool)
    model, plain = paged_model(name), tiny_model(name)
    mask = torch.ones(2, 22, dtype=torch.int64, device=DEVICE)
    mask[0, 13:17] = 0
    added = torch.zeros(2, 1, 1, length, device=DEVICE).masked_fill(mask[:, None, None, -length:] == 0, -1e30)
    told = f"the mask is (2, 1, 1, {length}) of torch.float32; the kernel takes bool"
    for each, reason in ((mask, None), (added, told)):
        cache, past = CachecoreCache(pool), DynamicCache(config=plain.config)
        prefill(model, cache)
        prefill(plain, past)

        assert_close(steps(model, cache, 1, mask=each), steps(plain, past, 1, mask=each))

        for path in cache.attention_paths():
            assert (path.reason or "").startswith(reason or "")
            assert path.path == ("gathered" if reason else "paged")
        cache.release()
