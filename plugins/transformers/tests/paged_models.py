"""Tiny models whose attention is ``"cachecore"``, and the steps that are compared."""

from __future__ import annotations

import copy
from functools import cache

import torch
from cachecore_transformers import CachecoreCache
from twins import DEVICE, prompts, tiny_model

__all__ = ["assert_close", "paged_model", "paths", "prefill", "steps"]

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
