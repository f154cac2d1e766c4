"""The same forward calls on blocks and on plain transformers, every logit compared."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from cachecore_torch_default.tensors import synchronize
from cachecore_transformers import CachecoreCache, CachePool
from transformers import DynamicCache

__all__ = ["Difference", "Pair", "Tally", "wait_for"]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first call whose logits were not equal."""

    call: int
    stage: str
    num_different: int
    largest: float


@dataclass(slots=True)
class Tally:
    """What was compared, and how long each side took to compute it."""

    num_calls: int = 0
    num_logits: int = 0
    num_tokens: int = 0
    blocks_s: float = 0.0
    plain_s: float = 0.0
    decoded: int = 0
    decode_blocks_s: float = 0.0
    decode_plain_s: float = 0.0
    difference: Difference | None = None

    def compare(self, stage: str, got: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
        """Count logits, and keep the first difference."""
        for one, two in zip(got, expected, strict=True):
            self.num_calls += 1
            self.num_logits += one.numel()
            if self.difference is None and not torch.equal(one, two):
                apart = (one - two).abs()
                self.difference = Difference(self.num_calls, stage, int((one != two).sum()), float(apart.max()))


class Pair:
    """A cache in blocks and a plain one, which are always handed the same tokens."""

    def __init__(self, model: Any, pool: CachePool, tally: Tally) -> None:
        self.model = model
        self.tally = tally
        self.blocks = CachecoreCache(pool)
        self.plain: Any = DynamicCache(config=model.config)
        self.mask = torch.empty(1, 0, dtype=torch.int64, device=model.device)

    def call(self, ids: torch.Tensor, mask: torch.Tensor | None = None, *, stage: str) -> torch.Tensor:
        """One forward call on each side; returns the logits of the last token."""
        device = self.model.device
        new = torch.ones_like(ids) if mask is None else mask
        self.mask = torch.cat([self.mask, new.to(device)], dim=1)
        arguments = {
            "input_ids": ids.to(device),
            "attention_mask": self.mask,
            "position_ids": (self.mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :],
            "use_cache": True,
        }
        logits, seconds = [], []
        for past in (self.blocks, self.plain):
            started = time.perf_counter()
            with torch.inference_mode():
                logits.append(self.model(**arguments, past_key_values=past).logits)
            wait_for(device)
            seconds.append(time.perf_counter() - started)
        self._count(ids, *seconds)
        self.tally.compare(stage, [logits[0]], [logits[1]])
        return logits[0][:, -1]

    def _count(self, ids: torch.Tensor, blocks_s: float, plain_s: float) -> None:
        tally = self.tally
        tally.num_tokens += ids.numel()
        tally.blocks_s += blocks_s
        tally.plain_s += plain_s
        if ids.shape[1] == 1:
            tally.decoded += ids.numel()
            tally.decode_blocks_s += blocks_s
            tally.decode_plain_s += plain_s

    def fork(self, repeats: int) -> None:
        """Every sequence becomes ``repeats``: on blocks by sharing and copying, on the plain side in new tensors."""
        self.blocks.batch_repeat_interleave(repeats)
        self.plain.batch_repeat_interleave(repeats)
        self.mask = self.mask.repeat_interleave(repeats, dim=0)


def wait_for(device: torch.device) -> None:
    """Wait until ``device`` has done what was queued, so that a clock tells the truth."""
    synchronize(device)
