"""What a cache layer handed to attention, told by a mark on the very tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cachecore_transformers.decode_steps import DecodeStep
from cachecore_transformers.paged import PagedKernels
from cachecore_transformers.places import read

__all__ = ["ATTENTION", "AttentionPath", "Handed", "PagedStep", "Reader", "handed_with", "mark"]

ATTENTION = "cachecore"
"""The name to give to ``model.set_attn_implementation()``."""

_MARK = "_cachecore_handed"


class AttentionPath(NamedTuple):
    """How a layer's steps of one token read the cache.

    ``path`` is that of the last such step: ``"paged"`` (in the blocks), ``"gathered"`` for ``reason``, or
    ``"none"`` before the first one.
    """

    layer: int
    path: str
    reason: str | None
    num_paged: int
    num_gathered: int


class Reader:
    """What reads one layer's keys and values, and how its steps of one token went.

    ``config`` is the configuration of the attention module that was handed this layer's tensors untouched,
    by which the model tells how it computes attention; None until then. ``asks`` is what that module asks
    for and no kernel computes, if it does.
    """

    def __init__(self) -> None:
        self.config: object = None
        self.asks: str | None = None
        self.is_due = False
        """Whether a step was left in the blocks that attention has not read yet."""
        self.reason: str | None = None
        self.num_paged = self.num_gathered = 0

    def why_not(self) -> str | None:
        """None when the next step's attention will be ours, else why not."""
        if self.config is None:
            return (
                f"no attention named {ATTENTION!r} has been handed this layer's keys and values as they are; the first "
                f"step after model.set_attn_implementation({ATTENTION!r}) gathers, to see who reads"
            )
        named = getattr(self.config, "_attn_implementation", None)
        if named != ATTENTION:
            return f"the model's attention is {named!r}; call model.set_attn_implementation({ATTENTION!r})"
        return self.asks

    def gathered(self, reason: str) -> None:
        """A step was not left in the blocks."""
        self.reason = reason
        self.num_gathered += 1

    def attended(self, reason: str | None) -> None:
        """A step that was left in the blocks was read there, or gathered after all."""
        self.is_due = False
        if reason is not None:
            self.gathered(reason)
            return
        self.reason = None
        self.num_paged += 1

    def path(self, layer: int) -> AttentionPath:
        """The record to show."""
        path = "gathered" if self.reason else "paged" if self.num_paged else "none"
        return AttentionPath(layer, path, self.reason, self.num_paged, self.num_gathered)


class PagedStep(NamedTuple):
    """One layer's step of one token, whose keys and values were stored and not gathered."""

    kernels: PagedKernels
    rows: tuple[torch.Tensor, torch.Tensor]
    step: DecodeStep

    def attend(self, query: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
        """Attention in the blocks: ``(sequences, heads, 1, dim)`` in, ``(sequences, 1, heads, dim)`` out."""
        return self.kernels.attend(query, self.rows, self.step, mask, scale)

    def gather(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer would have handed over, where attention cannot read the blocks."""
        places = self.step.places(self.kernels.group)
        keys, values = self.rows
        return read(keys, places, len(self.step.table)), read(values, places, len(self.step.table))


class Handed(NamedTuple):
    """Keys and values for ``reader``: gathered, or left in the blocks for ``step``."""

    reader: Reader
    step: PagedStep | None


def mark(keys: torch.Tensor, values: torch.Tensor, handed: Handed) -> tuple[torch.Tensor, torch.Tensor]:
    """Let attention recognise ``keys`` and ``values``, if they reach it as they are."""
    setattr(keys, _MARK, handed)
    setattr(values, _MARK, handed)
    return keys, values


def handed_with(keys: torch.Tensor, values: torch.Tensor) -> Handed | None:
    """The mark on both tensors; None where they have none, or two."""
    found: Handed | None = getattr(keys, _MARK, None)
    return found if getattr(values, _MARK, None) is found else None
