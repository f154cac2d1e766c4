"""Paged decode attention as it is defined, in float64: what the kernel is checked against."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["paged_decode_attention_reference"]


def paged_decode_attention_reference(
    query: Tensor,
    key_row: Tensor,
    value_row: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    starts: Tensor | None = None,
    mask: Tensor | None = None,
    pages_per_block: int = 1,
) -> Tensor:
    """The result of :func:`paged_decode_attention` for the same operands, as float64 on their device.

    Token by token through the table, so that nothing is shared with what it checks.
    """
    num_seqs, num_heads, _ = query.shape
    num_kv_heads = key_row.shape[-2]
    result = torch.zeros((num_seqs, num_heads, value_row.shape[-1]), dtype=torch.float64, device=query.device)
    for sequence in range(num_seqs):
        first = 0 if starts is None else int(starts[sequence])
        seen = [
            token
            for token in range(first, int(seq_lens[sequence]))
            if mask is None or bool(mask[sequence, token - first])
        ]
        places = [_place(key_row, block_table[sequence], token, pages_per_block) for token in seen]
        if not places:
            continue
        keys = torch.stack([key_row[place] for place in places]).double()
        values = torch.stack([value_row[place] for place in places]).double()
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            score = keys[:, kv_head] @ query[sequence, head].double() * scale
            result[sequence, head] = torch.softmax(score, 0) @ values[:, kv_head]
    return result


def _place(row: Tensor, table: Tensor, token: int, pages_per_block: int) -> tuple[int, ...]:
    """Index of one token in a row view, through its logical block."""
    page_size = row.shape[-3]
    pages = row.shape[1] if row.dim() == 5 else pages_per_block
    number, within = divmod(token, page_size * pages)
    page, slot = divmod(within, page_size)
    block = int(table[number])
    return (block, page, slot) if row.dim() == 5 else (block * pages + page, slot)
