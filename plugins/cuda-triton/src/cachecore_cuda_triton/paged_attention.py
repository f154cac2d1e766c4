"""Attention of one new token a sequence over the cache's own blocks, without gathering them first."""

from __future__ import annotations

import torch
from torch import Tensor

from cachecore_cuda_triton.attention_launch import DecodeTiling, Form, PreparedAttention, form_of, form_of_ids

__all__ = ["DecodeTiling", "check_ids", "check_rows", "named", "paged_decode_attention"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

_MAX_PREPARED = 1024
"""Forms kept; a model has one or two, and more only come from shapes that change all the time."""

_prepared: dict[tuple[object, ...], PreparedAttention] = {}


def paged_decode_attention(
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
    num_splits: int | None = None,
    tiling: DecodeTiling | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from one query token a sequence to the tokens ``starts`` up to ``seq_lens`` of its blocks.

    Token ``t`` stands in block ``block_table[sequence, t // block_size]``. Nothing is read on the host
    and nothing waits, so a graph may capture the call and replay it with other ids and lengths, which
    are not checked.

    Parameters
    ----------
    query
        ``(num_seqs, num_heads, key_dim)`` in bfloat16, float16 or float32.
    key_row, value_row
        Row views of any layout: ``(entries, tokens, kv_heads, dim)``, or ``(blocks, pages, tokens,
        kv_heads, dim)`` where an entry is a whole block. The last axis is dense; ``num_heads`` is a multiple
        of ``kv_heads``; the two dims may differ.
    block_table
        ``(num_seqs, max_blocks)``, int32 or int64: logical blocks. Behind a sequence's last one it is not read.
    seq_lens
        ``(num_seqs,)``: tokens in the table, the newest included.
    starts
        ``(num_seqs,)``: the first token seen (a window, or padding on the left); 0 when left out.
    mask
        ``(num_seqs, at least seq_lens - starts)`` of bool, last axis dense: whether a token is seen; the first
        column is the token ``starts``.
    pages_per_block
        Kernel pages of a logical block, for row views without an axis for them.
    num_splits
        Programs that share one sequence and head; when left out, as many as fill the device.
    tiling
        When left out, what was measured best: ``NOTES.md``.
    out
        ``(num_seqs, num_heads, value_dim)`` to write to; made when left out.

    Returns
    -------
    Tensor
        ``out``; zeros for a sequence that sees no token.

    Raises
    ------
    ValueError
        For operands whose shapes, dtypes, devices or strides do not fit one another.
    """
    # Whatever was checked for operands of one form holds for the next ones of that form.
    form = (
        *(form_of(query), form_of(key_row), form_of(value_row), None if out is None else form_of(out)),
        *(form_of_ids(block_table), form_of_ids(seq_lens), None if starts is None else form_of_ids(starts)),
        *(None if mask is None else form_of_ids(mask), pages_per_block, tiling),
    )
    prepared = _prepared.get(form)
    is_new = prepared is None
    if is_new:
        _check(query, key_row, value_row)
        for name, ids in (("block_table", block_table), ("seq_lens", seq_lens), ("starts", starts)):
            check_ids(name, ids, query, num_axes=2 if name == "block_table" else 1)
        _check_mask(mask, query)
    shape = (query.shape[0], query.shape[1], value_row.shape[-1])
    if out is None:
        out = torch.empty(shape, dtype=query.dtype, device=query.device)
    elif is_new and (
        out.shape != shape or out.dtype != query.dtype or out.stride(-1) != 1 or out.device != query.device
    ):
        raise ValueError(f"out is {named(out)}; expected {shape}, {query.dtype}, on {query.device}, last axis dense")
    if not shape[0]:
        return out
    if prepared is None:
        if len(_prepared) >= _MAX_PREPARED:
            _prepared.clear()
        traits = Form(pages_per_block, starts is not None, mask is not None, tiling)
        prepared = _prepared[form] = PreparedAttention(query, key_row, value_row, out, traits)
    shown = seq_lens if mask is None else mask.view(torch.uint8)
    prepared.run(
        (query, key_row, value_row, out),
        (block_table, seq_lens if starts is None else starts, seq_lens, shown),
        scale,
        prepared.num_splits(block_table) if num_splits is None else num_splits,
    )
    return out


def check_rows(like: Tensor, key_row: Tensor, value_row: Tensor) -> None:
    """Raise ValueError unless both are row views of one form, in the dtype and on the device of ``like``."""
    for name, row in (("key_row", key_row), ("value_row", value_row)):
        if row.dim() not in (4, 5) or row.stride(-1) != 1:
            raise ValueError(
                f"{name} is {named(row)}; expected a row view (entries, [pages,] tokens, kv_heads, dim) with a dense "
                "last axis"
            )
        if row.dtype != like.dtype or row.device != like.device:
            raise ValueError(
                f"{name} is {named(row)}, but the token's is {named(like)}; both need one dtype and device"
            )
    if key_row.shape[:-1] != value_row.shape[:-1]:
        raise ValueError(f"key_row is {named(key_row)} and value_row {named(value_row)}; only the dims may differ")


def _check(query: Tensor, key_row: Tensor, value_row: Tensor) -> None:
    if query.dim() != 3 or query.stride(-1) != 1:
        raise ValueError(f"query is {named(query)}; expected (num_seqs, num_heads, dim) with a dense last axis")
    if query.dtype not in _DTYPES:
        raise ValueError(f"query is {query.dtype}; expected bfloat16, float16 or float32")
    check_rows(query, key_row, value_row)
    if query.shape[1] % key_row.shape[-2] or query.shape[2] != key_row.shape[-1]:
        raise ValueError(
            f"query {tuple(query.shape)} does not fit keys of {key_row.shape[-2]} heads x {key_row.shape[-1]}; its "
            "heads must be a multiple of theirs and its last axis theirs"
        )


def check_ids(name: str, ids: Tensor | None, query: Tensor, *, num_axes: int) -> None:
    """Raise ValueError unless ``ids`` are ids of the sequences of ``query``; None is fine."""
    if ids is None:
        return
    fits = ids.dim() == num_axes and ids.shape[0] == query.shape[0] and ids.stride(-1) in (1, int(ids.shape[-1] == 1))
    if not fits or ids.dtype not in (torch.int32, torch.int64) or ids.device != query.device:
        raise ValueError(
            f"{name} is {named(ids)}; expected {num_axes} axes of int32 or int64 on {query.device}, the first of "
            f"{query.shape[0]} sequences, the last dense"
        )


def _check_mask(mask: Tensor | None, query: Tensor) -> None:
    if mask is None:
        return
    fits = mask.dim() == 2 and mask.shape[0] == query.shape[0] and mask.stride(-1) in (1, int(mask.shape[-1] == 1))
    if not fits or mask.dtype != torch.bool or mask.device != query.device:
        raise ValueError(
            f"mask is {named(mask)}; expected (num_seqs, tokens) of bool on {query.device}, the first axis of "
            f"{query.shape[0]} sequences, the last dense"
        )


def named(tensor: Tensor) -> str:
    """A tensor as an error names it."""
    return f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}, strides {tensor.stride()}"
