"""The kernels that a backend may bring for steps of one token, which read and write the blocks where they are.

An optional capability of a backend with torch tensors: two attributes, ``paged_decode_attention`` and
``store_decode_tokens``, called as :class:`PagedAttention` and :class:`TokenStore` say.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from cachecore_transformers.decode_steps import DecodeStep
from cachecore_transformers.pool import CachePool, Group

__all__ = ["PagedAttention", "PagedKernels", "TokenStore", "find_kernels"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class PagedAttention(Protocol):
    """Attention of one query token a sequence, ``(num_seqs, num_heads, dim)`` in and out.

    Row views are ``(entries, tokens, kv_heads, dim)`` with ``pages_per_block`` entries a block, or ``(blocks, pages,
    tokens, kv_heads, dim)``, in bfloat16, float16 or float32, with any strides but a dense last axis. Token ``t``
    stands in block ``block_table[sequence, t // block_size]``; tokens from ``starts`` (0) up to ``seq_lens`` are
    seen, but for those whose ``mask`` is false; its first column is the token ``starts``. Work is queued on the
    current stream and nothing is read on the host.
    """

    def __call__(
        self,
        query: torch.Tensor,
        key_row: torch.Tensor,
        value_row: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        scale: float,
        *,
        starts: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        pages_per_block: int = 1,
    ) -> torch.Tensor:
        """Return the result."""


class TokenStore(Protocol):
    """Writes token ``seq_lens - 1`` of every sequence, ``(num_seqs, kv_heads, dim)``, into its block."""

    def __call__(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_row: torch.Tensor,
        value_row: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        pages_per_block: int = 1,
    ) -> None:
        """Queue it."""


class PagedKernels(NamedTuple):
    """A backend's kernels for one group."""

    attention: PagedAttention
    token_store: TokenStore
    group: Group
    pages_per_block: int

    def store(
        self,
        rows: tuple[torch.Tensor, torch.Tensor],
        keys: torch.Tensor,
        values: torch.Tensor,
        step: DecodeStep,
    ) -> None:
        """Put ``(sequences, heads, 1, dim)`` where the step says."""
        new = keys.detach().squeeze(2), values.detach().squeeze(2)
        self.token_store(*new, *rows, step.table, step.stops, pages_per_block=self.pages_per_block)

    def attend(
        self,
        query: torch.Tensor,
        rows: tuple[torch.Tensor, torch.Tensor],
        step: DecodeStep,
        mask: torch.Tensor | None,
        scale: float,
    ) -> torch.Tensor:
        """``(sequences, 1, heads, dim)`` for a query ``(sequences, heads, 1, dim)``."""
        shown = None if mask is None else mask[:, 0, 0].expand(len(query), -1)
        return self.attention(
            query.detach().squeeze(2),
            *rows,
            step.table,
            step.stops,
            scale,
            starts=step.starts,
            mask=shown,
            pages_per_block=self.pages_per_block,
        ).unsqueeze(1)


def find_kernels(pool: CachePool, name: str, dtype: torch.dtype) -> PagedKernels | str:
    """The kernels of the pool's backend for group ``name``, or the reason why there are none."""
    backend, group = pool.engine.backend, pool.groups[name]
    attention = getattr(backend, "paged_decode_attention", None)
    token_store = getattr(backend, "store_decode_tokens", None)
    if attention is None or token_store is None:
        return f"backend {backend.name!r} brings no paged_decode_attention"
    if dtype not in _DTYPES:
        return f"the cache is in {dtype}; kernels are for bfloat16, float16 and float32"
    if not isinstance(group, Group) or group.rate != 1:
        return f"group {name!r} does not keep every token's keys and values in blocks"
    pages = 1 if group.plan.layout.pages_per_entry > 1 else group.block_size // group.page_size
    return PagedKernels(attention, token_store, group, pages)
