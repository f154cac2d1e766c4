"""A transformers model that decodes on the GPU: in the blocks, as it goes and from a captured graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from cachecore import EngineStateError

transformers = pytest.importorskip("transformers")
cachecore_transformers = pytest.importorskip("cachecore_transformers")

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Of logits relative to their norm, with matrix products in TF32 or two bytes on both sides."""


@pytest.fixture(scope="module")
def model(gpu: torch.device) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=576, intermediate_size=256, num_hidden_layers=3, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(gpu).eval()


def tokens(num_sequences: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.randint(3, 256, (num_sequences, count), generator=torch.Generator().manual_seed(1)).to(device)


def logits_of(model: Any, past: Any, ids: torch.Tensor, prompt: int, graph: Any = None) -> torch.Tensor:
    with torch.inference_mode():
        model(ids[:, :prompt], past_key_values=past, logits_to_keep=1)
        step = graph(model, past) if graph else lambda one: model(one, past_key_values=past).logits
        return torch.cat([step(ids[:, at : at + 1]).float().clone() for at in range(prompt, ids.shape[1])], 1)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_sequences", "prompt"), [(1, 1000), (5, 37)])
def test_logits_are_those_of_plain_transformers(
    captured: bool, dtype: torch.dtype, num_sequences: int, prompt: int, model: Any, gpu: torch.device
) -> None:
    plain = copy.deepcopy(model).to(dtype)
    ours = copy.deepcopy(plain)
    ours.set_attn_implementation("cachecore")
    ids = tokens(num_sequences, prompt + 60, gpu)  # over the 64th block of 16, where a table grows
    expected = logits_of(plain, transformers.DynamicCache(config=plain.config), ids, prompt)

    options = {"num_sequences": num_sequences, "max_tokens": ids.shape[1], "device": "cuda", "dtype": dtype}
    with (
        cachecore_transformers.open_pool(ours.config, backend="cuda-triton", **options) as pool,
        cachecore_transformers.CachecoreCache(pool) as cache,
    ):
        got = logits_of(ours, cache, ids, prompt, cachecore_transformers.DecodeGraph if captured else None)
        paths = {(path.path, path.num_gathered) for path in cache.attention_paths()}

    assert paths == {("paged", 0)}
    assert float((got - expected).norm() / expected.norm()) < TOLERANCE[dtype]


def test_a_captured_step_follows_swaps_and_another_batch(model: Any, gpu: torch.device) -> None:
    ours = copy.deepcopy(model)
    ours.set_attn_implementation("cachecore")
    ids = tokens(4, 60, gpu)
    past = transformers.DynamicCache(config=model.config)
    expected = logits_of(model, past, ids[:, :50], 20)
    past.batch_select_indices(torch.tensor([2, 2, 1], device=gpu))
    with torch.inference_mode():
        expected_after = [model(ids[:3, at : at + 1], past_key_values=past).logits for at in range(50, 60)]

    options = {"num_sequences": 12, "max_tokens": 64, "num_host_blocks": 40, "device": "cuda", "dtype": torch.float32}
    with (
        cachecore_transformers.open_pool(ours.config, backend="cuda-triton", **options) as pool,
        cachecore_transformers.CachecoreCache(pool) as cache,
        torch.inference_mode(),
    ):
        ours(ids[:, :20], past_key_values=cache, logits_to_keep=1)
        step = cachecore_transformers.DecodeGraph(ours, cache)
        got = []
        for at in range(20, 50):
            if at in (30, 41):
                cache.swap_out()
                cache.swap_in()
            got.append(step(ids[:, at : at + 1]).clone())
        cache.batch_select_indices(torch.tensor([2, 2, 1], device=gpu))
        after = [step(ids[:3, at : at + 1]).clone() for at in range(50, 60)]

    for one, two in ((torch.cat(got, 1), expected), (torch.cat(after, 1), torch.cat(expected_after, 1))):
        assert float((one - two).norm() / two.norm()) < TOLERANCE[torch.float32]


def test_a_captured_step_after_a_sleep(model: Any, gpu: torch.device) -> None:
    ours = copy.deepcopy(model)
    ours.set_attn_implementation("cachecore")
    ids = tokens(3, 60, gpu)
    expected = logits_of(model, transformers.DynamicCache(config=model.config), ids, 20)
    options = {"num_sequences": 3, "max_tokens": 64, "device": "cuda", "dtype": torch.float32}
    with (
        cachecore_transformers.open_pool(ours.config, backend="cuda-triton", **options) as pool,
        cachecore_transformers.CachecoreCache(pool) as cache,
        torch.inference_mode(),
    ):
        ours(ids[:, :20], past_key_values=cache, logits_to_keep=1)
        step = cachecore_transformers.DecodeGraph(ours, cache)
        got = [step(ids[:, at : at + 1]).clone() for at in range(20, 40)]
        pool.engine.sleep()
        with pytest.raises(EngineStateError, match="asleep"):
            step(ids[:, 40:41])
        taken = torch.full((64 << 20,), 0x5A, dtype=torch.uint8, device=gpu)
        pool.engine.wake()
        got += [step(ids[:, at : at + 1]).clone() for at in range(40, 60)]
        del taken

    assert float((torch.cat(got, 1) - expected).norm() / expected.norm()) < TOLERANCE[torch.float32]
