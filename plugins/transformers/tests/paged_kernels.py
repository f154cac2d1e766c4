"""The optional kernels of a backend: as they are defined, in float64, and those of the CUDA plugin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from twins import DEVICE

__all__ = ["KERNELS", "bring"]


def place(row: torch.Tensor, table: torch.Tensor, token: int, pages_per_block: int) -> tuple[int, ...]:
    """Index of one token in a row view."""
    page_size = row.shape[-3]
    pages = row.shape[1] if row.dim() == 5 else pages_per_block
    number, within = divmod(token, page_size * pages)
    page, slot = divmod(within, page_size)
    block = int(table[number])
    return (block, page, slot) if row.dim() == 5 else (block * pages + page, slot)


def attention(query, key_row, value_row, block_table, seq_lens, scale, *, starts=None, mask=None, pages_per_block=1):
    """Token by token."""
    group = query.shape[1] // key_row.shape[-2]
    out = torch.zeros(*query.shape[:2], value_row.shape[-1], dtype=torch.float64, device=query.device)
    for number, table in enumerate(block_table):
        first = 0 if starts is None else int(starts[number])
        tokens = range(first, int(seq_lens[number]))
        at = [
            place(key_row, table, token, pages_per_block)
            for token in tokens
            if mask is None or mask[number, token - first]
        ]
        keys = torch.stack([key_row[index] for index in at]).double().repeat_interleave(group, 1)
        values = torch.stack([value_row[index] for index in at]).double().repeat_interleave(group, 1)
        weight = (torch.einsum("hd,thd->ht", query[number].double(), keys) * scale).softmax(-1)
        out[number] = torch.einsum("ht,thd->hd", weight, values)
    return out.to(query.dtype)


def store(keys, values, key_row, value_row, block_table, seq_lens, *, pages_per_block=1):
    """One by one."""
    for number, table in enumerate(block_table):
        at = place(key_row, table, int(seq_lens[number]) - 1, pages_per_block)
        key_row[at], value_row[at] = keys[number], values[number]


def defined() -> tuple[Any, Any]:
    return attention, store


def triton() -> tuple[Any, Any]:
    pytest.importorskip("triton")
    pytest.importorskip("cachecore_cuda_triton")
    from cachecore_cuda_triton.decode_store import store_decode_tokens
    from cachecore_cuda_triton.paged_attention import paged_decode_attention

    return paged_decode_attention, store_decode_tokens


KERNELS = {"defined": defined, "triton": triton}


def bring(pool: Any, name: str = "defined" if DEVICE == "cpu" else "triton") -> None:
    """Let the pool's backend have the kernels that are called ``name``."""
    backend = pool.engine.backend
    backend.paged_decode_attention, backend.store_decode_tokens = KERNELS[name]()
