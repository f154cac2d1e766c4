"""Tiny random models, and the same runs of them on plain transformers and on blocks."""

from __future__ import annotations

import copy
import os
from functools import cache
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from cachecore_transformers import CachecoreCache, CachePool, measure_kv_shapes, measure_state_shapes, plan_model
from cachecore_transformers.pool import Group
from tiny_models import CACHE_PARAMS, CONFIGS, MEASURED_MODELS, MODELS, SHARED, STATE_MODELS
from transformers import AutoModelForCausalLM, DynamicCache, LogitsProcessor

__all__ = [
    "DEVICE",
    "FORKS",
    "MODELS",
    "MODES",
    "NUM_NEW",
    "Twins",
    "assert_equal_runs",
    "group_names",
    "poison",
    "prompts",
    "reference",
    "run",
    "shape_options",
    "tiny_config",
    "tiny_model",
    "twins",
]

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()

DEVICE = os.environ.get("CACHECORE_TEST_DEVICE", "cpu")
"""Where the models run; any device that an installed backend serves."""


def tiny_config(name: str) -> Any:
    """The configuration of a tiny model."""
    kind, values = CONFIGS[name]
    return getattr(transformers, kind)(**(values if name in CACHE_PARAMS else {**SHARED, **values}))


@cache
def tiny_model(name: str) -> Any:
    """A tiny random model in float32; the same weights every time."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(name), dtype=torch.float32).to(DEVICE).eval()


@cache
def shape_options(name: str) -> dict[str, Any]:
    """What :func:`plan_model` has to be told about a model."""
    if name not in MEASURED_MODELS:
        return {}
    model = tiny_model(name)
    return {"kv_shapes": measure_kv_shapes(model), "state_shapes": measure_state_shapes(model)}


@cache
def group_names(name: str) -> tuple[str, ...]:
    """The groups of a tiny model's plan."""
    return plan_model(tiny_config(name), dtype="float32", **shape_options(name)).names


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


def cache_argument(model: Any) -> str:
    """What ``model`` calls its cache."""
    return "cache_params" if model.config.model_type in CACHE_PARAMS else "past_key_values"


def repeat(past: Any, num_sequences: int, times: int) -> None:
    """Fork every sequence; transformers' own layers with states can only be reordered."""
    if isinstance(past, CachecoreCache):
        past.batch_repeat_interleave(times)
    else:
        past.reorder_cache(torch.arange(num_sequences, device=DEVICE).repeat_interleave(times))


def run(model: Any, past: Any, mode: str, num_sequences: int, action: Any = None) -> Any:
    """``generate()`` in one mode with one cache, from the same seed every time."""
    inputs = prompts(num_sequences)
    torch.manual_seed(5)
    if mode == "parallel":  # prefill once, fork the sequences, then sample each fork on its own
        start = {name: value[:, :-1] for name, value in inputs.items()}
        with torch.no_grad():
            model(**start, **{cache_argument(model): past}, use_cache=True)
        repeat(past, num_sequences, FORKS[mode])
        inputs = {name: value.repeat_interleave(FORKS[mode], dim=0) for name, value in inputs.items()}
    return model.generate(
        **inputs,
        **MODES[mode],
        **{cache_argument(model): past},
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
    for group in pool.groups.values():
        if not isinstance(group, Group):
            free = [slot for slot in range(group.allocator.num_blocks) if not group.allocator.references(slot)]
            for spec in group.plan.specs:
                for row in spec.row_ids if free else ():
                    pool.engine.states.state_caches.layer(spec.name, row)[free] = float("nan")
            continue
        per_block = group.block_size // group.entry_tokens
        free = [block for block in range(group.allocator.num_blocks) if not group.allocator.references(block)]
        entries = torch.tensor([block * per_block + page for block in free for page in range(per_block)])
        for spec in group.plan.specs:
            for row in spec.row_ids if free else ():
                pool.engine.block_caches.layer(spec.name, row)[entries] = float("nan")


class Twins:
    """Makes the same forward calls with a block cache and with a plain one, and compares every logit."""

    def __init__(self, name: str, pool: CachePool) -> None:
        self.model = tiny_model(name)
        self.has_states = name in STATE_MODELS
        self.blocks = CachecoreCache(pool)
        self.plain: Any = DynamicCache(config=self.model.config)
        self.mask = torch.empty(0, 0, dtype=torch.int64)

    def call(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """One forward call with each; returns the logits when they are equal."""
        new = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        self.mask = torch.cat([self.mask, new], dim=1) if self.mask.numel() else new
        arguments: dict[str, Any] = {"input_ids": input_ids, "attention_mask": self.mask, "use_cache": True}
        named = cache_argument(self.model)
        if named == "cache_params":
            arguments["attention_mask"] = new  # Mamba multiplies the new tokens by it
        else:
            arguments["position_ids"] = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        logits = []
        for past in (self.blocks, self.plain):
            with torch.no_grad():
                out = self.model(**arguments, **{named: past})
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
        if self.has_states:  # transformers' own layers with states can only be reordered
            self.plain.reorder_cache(chosen)
        else:
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
