"""Attention of one new token a sequence over the cache's own blocks, without gathering them first."""

from __future__ import annotations

from functools import cache
from math import e, log2
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from cachecore_cuda_triton.kernels_attention import attend, combine

__all__ = ["DecodeTiling", "paged_decode_attention"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

_MAX_SPLITS = 64
"""Shares of one sequence; more would cost more to add up than they save."""

_SHARE_TOKENS = 256
"""Tokens of a share at least, where there are so many: a program's start-up must be worth it."""

_LOG2_E = log2(e)


class DecodeTiling(NamedTuple):
    """Tokens that a program reads at once, its warps, and how many tiles are on their way."""

    tile: int
    num_warps: int
    num_stages: int


class _Strides(NamedTuple):
    """Elements between two blocks, pages, tokens and heads of a row view."""

    block: int
    page: int
    token: int
    head: int


def paged_decode_attention(
    query: Tensor,
    key_row: Tensor,
    value_row: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    starts: Tensor | None = None,
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
    keys = _strides(key_row, pages_per_block, "key_row")
    values = _strides(value_row, pages_per_block, "value_row")
    _check(query, key_row, value_row)
    num_seqs, num_heads, key_dim = query.shape
    num_kv_heads, value_dim = key_row.shape[-2], value_row.shape[-1]
    for name, ids in (("block_table", block_table), ("seq_lens", seq_lens), ("starts", starts)):
        _check_ids(name, ids, query, num_axes=2 if name == "block_table" else 1)
    shape = (num_seqs, num_heads, value_dim)
    if out is None:
        out = torch.empty(shape, dtype=query.dtype, device=query.device)
    elif out.shape != shape or out.dtype != query.dtype or out.stride(-1) != 1 or out.device != query.device:
        raise ValueError(f"out is {_named(out)}; expected {shape}, {query.dtype}, on {query.device}, last axis dense")
    if not num_seqs:
        return out
    page_size = key_row.shape[-3]
    block_size = page_size * (key_row.shape[1] if key_row.dim() == 5 else pages_per_block)
    if num_splits is None:
        num_splits = _splits(query.device, num_seqs * num_kv_heads, block_table.shape[1] * block_size)
    if tiling is None:
        tiling = _tiling(max(key_dim, value_dim) * key_row.element_size())
    partial = partial_lse = out  # never touched without splits
    if num_splits > 1:
        partial = torch.empty((num_seqs, num_heads, num_splits, value_dim), dtype=torch.float32, device=query.device)
        partial_lse = torch.empty((num_seqs, num_heads, num_splits), dtype=torch.float32, device=query.device)
    value_pad = triton.next_power_of_2(value_dim)
    group = num_heads // num_kv_heads
    attend[(num_seqs, num_kv_heads, num_splits)](
        *(query, key_row, value_row, block_table, seq_lens if starts is None else starts, seq_lens),
        *(out, partial, partial_lse, scale * _LOG2_E, num_splits, block_table.stride(0)),
        *(query.stride(0), query.stride(1), out.stride(0), out.stride(1), *keys, *values),
        GROUP=group,
        GROUP_PAD=max(16, triton.next_power_of_2(group)),
        KEY_DIM=key_dim,
        KEY_PAD=max(16, triton.next_power_of_2(key_dim)),
        VALUE_DIM=value_dim,
        VALUE_PAD=max(16, value_pad),
        BLOCK_SIZE=block_size,
        PAGE_SIZE=page_size,
        TILE=tiling.tile,
        HAS_STARTS=starts is not None,
        SPLIT=num_splits > 1,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        INTERPRETED=query.device.type != "cuda",
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if num_splits > 1:
        combine[(num_seqs, num_heads)](
            *(partial, partial_lse, out, num_splits, out.stride(0), out.stride(1)),
            VALUE_DIM=value_dim,
            VALUE_PAD=value_pad,
            SPLITS_PAD=triton.next_power_of_2(num_splits),
            num_warps=4,
        )
    return out


def _strides(row: Tensor, pages_per_block: int, name: str) -> _Strides:
    if row.dim() not in (4, 5) or row.stride(-1) != 1:
        raise ValueError(
            f"{name} is {_named(row)}; expected a row view (entries, [pages,] tokens, kv_heads, dim) with a dense "
            "last axis"
        )
    if row.dim() == 5:
        return _Strides(row.stride(0), row.stride(1), row.stride(2), row.stride(3))
    return _Strides(row.stride(0) * pages_per_block, *row.stride()[:3])


def _check(query: Tensor, key_row: Tensor, value_row: Tensor) -> None:
    if query.dim() != 3 or query.stride(-1) != 1:
        raise ValueError(f"query is {_named(query)}; expected (num_seqs, num_heads, dim) with a dense last axis")
    if query.dtype not in _DTYPES:
        raise ValueError(f"query is {query.dtype}; expected bfloat16, float16 or float32")
    for name, row in (("key_row", key_row), ("value_row", value_row)):
        if row.dtype != query.dtype or row.device != query.device:
            raise ValueError(f"{name} is {_named(row)}, but query is {_named(query)}; both need one dtype and device")
    if key_row.shape[:-1] != value_row.shape[:-1]:
        raise ValueError(f"key_row is {_named(key_row)} and value_row {_named(value_row)}; only the dims may differ")
    if query.shape[1] % key_row.shape[-2] or query.shape[2] != key_row.shape[-1]:
        raise ValueError(
            f"query {tuple(query.shape)} does not fit keys of {key_row.shape[-2]} heads x {key_row.shape[-1]}; its "
            "heads must be a multiple of theirs and its last axis theirs"
        )


def _check_ids(name: str, ids: Tensor | None, query: Tensor, *, num_axes: int) -> None:
    if ids is None:
        return
    fits = ids.dim() == num_axes and ids.shape[0] == query.shape[0] and ids.stride(-1) in (1, int(ids.shape[-1] == 1))
    if not fits or ids.dtype not in (torch.int32, torch.int64) or ids.device != query.device:
        raise ValueError(
            f"{name} is {_named(ids)}; expected {num_axes} axes of int32 or int64 on {query.device}, the first of "
            f"{query.shape[0]} sequences, the last dense"
        )


def _splits(device: torch.device, num_programs: int, max_tokens: int) -> int:
    """Enough programs for two rounds over the device, but no share of fewer tokens than are worth it."""
    wanted = -(-2 * _num_multiprocessors(device) // num_programs)
    return max(1, min(wanted, _MAX_SPLITS, -(-max_tokens // _SHARE_TOKENS)))


def _tiling(row_nbytes: int) -> DecodeTiling:
    """Measured best for heads of 256 bytes (``NOTES.md``); for longer ones what fits every device since sm_80."""
    if row_nbytes <= 256:
        return DecodeTiling(128, 4, 2)
    return DecodeTiling(32, 4, 2)


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _named(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}, strides {tensor.stride()}"
