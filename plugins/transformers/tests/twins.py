"""Tiny random models, and the same runs of them on plain transformers and on blocks."""

from __future__ import annotations

import copy
import os
from functools import cache
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from cachecore_transformers import CachecoreCache, CachePool
from transformers import AutoModelForCausalLM, DynamicCache, LogitsProcessor

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()

DEVICE = os.environ.get("CACHECORE_TEST_DEVICE", "cpu")
"""Where the models run; any device that an installed backend serves."""
WINDOW = 12
_SHARED = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 1,
}
_TYPES = ["sliding_attention", "full_attention"]
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": _TYPES * 2}),
    "gpt_oss": (
        "GptOssConfig",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    ),
    "deepseek_v3": ("DeepseekV3Config", _MLA),
    "llama4": (
        "Llama4TextConfig",
        {"head_dim": 16, "num_local_experts": 2, "intermediate_size_mlp": 48, "attention_chunk_size": WINDOW},
    ),
    "gemma4": (
        "Gemma4TextConfig",
        {
            "num_hidden_layers": 6,
            "layer_types": _TYPES * 3,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 128,
            "hidden_size_per_layer_input": 8,
        },
    ),
}
MODELS = tuple(CONFIGS)


def tiny_config(name: str) -> Any:
    """The configuration of a tiny model."""
    kind, values = CONFIGS[name]
    return getattr(transformers, kind)(**{**_SHARED, **values})


@cache
def tiny_model(name: str) -> Any:
    """A tiny random model in float32; the same weights every time."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(name), dtype=torch.float32).to(DEVICE).eval()


def prompts(num_sequences: int, num_tokens: int = 21) -> dict[str, torch.Tensor]:
    """Random prompts of unequal length, padded on the left: sequence ``i`` starts with ``4 * i`` pads."""
    generator = torch.Generator().manual_seed(num_sequences)
    ids = torch.randint(3, 128, (num_sequences, num_tokens), generator=generator)
    mask = torch.ones_like(ids)
    for number in range(num_sequences):
        ids[number, : 4 * number] = 0
        mask[number, : 4 * number] = 0
    return {"input_ids": ids.to(DEVICE), "attention_mask": mask.to(DEVICE)}


NUM_NEW = 14
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "beam": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "parallel": {"do_sample": True},
}
FORKS = {"greedy": 1, "beam": 3, "sampling": 2, "parallel": 3}


class At(LogitsProcessor):
    """Calls ``action`` once, between two forward calls of ``generate()``, in the middle of it."""

    def __init__(self, action: Any, step: int = NUM_NEW // 2) -> None:
        self.action, self.step = action, step

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.step -= 1
        if not self.step:
            self.action()
        return scores


def run(model: Any, past: Any, mode: str, num_sequences: int, action: Any = None) -> Any:
    """``generate()`` in one mode with one cache, from the same seed every time."""
    inputs = prompts(num_sequences)
    torch.manual_seed(5)
    if mode == "parallel":  # prefill once, fork the sequences, then sample each fork on its own
        start = {name: value[:, :-1] for name, value in inputs.items()}
        with torch.no_grad():
            model(**start, past_key_values=past, use_cache=True)
        past.batch_repeat_interleave(FORKS[mode])
        inputs = {name: value.repeat_interleave(FORKS[mode], dim=0) for name, value in inputs.items()}
    return model.generate(
        **inputs,
        **MODES[mode],
        past_key_values=past,
        max_new_tokens=NUM_NEW,
        min_new_tokens=NUM_NEW,
        return_dict_in_generate=True,
        output_logits=True,
        logits_processor=[At(action)] if action else [],
    )


@cache
def reference(name: str, mode: str, num_sequences: int) -> Any:
    """What plain transformers computes."""
    model = tiny_model(name)
    return run(model, DynamicCache(config=model.config), mode, num_sequences)


def assert_equal_runs(got: Any, expected: Any) -> None:
    """Every token and every logit, bit for bit."""
    assert torch.equal(got.sequences, expected.sequences)
    assert len(got.logits) == len(expected.logits) == NUM_NEW
    for step, (one, two) in enumerate(zip(got.logits, expected.logits, strict=True)):
        assert torch.equal(one, two), f"logits of step {step} differ by {(one - two).abs().max().item()}"


def poison(pool: CachePool) -> None:
    """Fill every free block with NaN, so that whoever reads memory it does not own is found out."""
    for name, group in pool.groups.items():
        per_block = group.block_size // group.entry_tokens
        free = [block for block in range(group.allocator.num_blocks) if not group.allocator.references(block)]
        entries = torch.tensor([block * per_block + page for block in free for page in range(per_block)])
        for layer in pool.layers:
            if layer.group == name and free:
                for cache_name in ("k_cache", "v_cache"):
                    pool.engine.block_caches.layer(cache_name, layer.layer)[entries] = float("nan")


class Twins:
    """Makes the same forward calls with a block cache and with a plain one, and compares every logit."""

    def __init__(self, name: str, pool: CachePool) -> None:
        self.model = tiny_model(name)
        self.blocks = CachecoreCache(pool)
        self.plain: Any = DynamicCache(config=self.model.config)
        self.mask = torch.empty(0, 0, dtype=torch.int64)

    def call(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """One forward call with each; returns the logits when they are equal."""
        new = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        self.mask = torch.cat([self.mask, new], dim=1) if self.mask.numel() else new
        position_ids = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        logits = []
        for past in (self.blocks, self.plain):
            with torch.no_grad():
                out = self.model(
                    input_ids=input_ids,
                    attention_mask=self.mask,
                    position_ids=position_ids,
                    past_key_values=past,
                    use_cache=True,
                )
            logits.append(out.logits)
        assert torch.equal(*logits), f"logits differ by {(logits[0] - logits[1]).abs().max().item()}"
        return logits[0]

    def steps(self, count: int, tokens: int = 1) -> None:
        """``count`` calls of ``tokens`` new ones."""
        generator = torch.Generator().manual_seed(count)
        for _ in range(count):
            self.call(torch.randint(3, 128, (len(self.mask), tokens), generator=generator).to(DEVICE))

    def select(self, indices: list[int]) -> None:
        """Continue with these sequences."""
        chosen = torch.tensor(indices, device=DEVICE)
        self.blocks.batch_select_indices(chosen)
        self.plain.batch_select_indices(chosen)
        self.mask = self.mask[chosen]

    def fork(self) -> Twins:
        """Both caches forked: blocks by sharing and copying, the plain one by deep copy."""
        other = copy.copy(self)
        other.blocks, other.plain = self.blocks.fork(), copy.deepcopy(self.plain)
        return other


def twins(name: str, pool: CachePool, num_sequences: int = 2, num_tokens: int = 21) -> Twins:
    """A model with a block cache and a plain one, after the same prefill."""
    both = Twins(name, pool)
    both.call(**prompts(num_sequences, num_tokens))
    return both
