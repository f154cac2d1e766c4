"""Keys and values of one new token a sequence, put into the cache's blocks in one launch."""

from __future__ import annotations

import triton
from torch import Tensor

from cachecore_cuda_triton.attention_launch import PreparedKernel, form_of, form_of_ids, row_strides
from cachecore_cuda_triton.kernels_attention import store
from cachecore_cuda_triton.paged_attention import check_ids, check_rows, named

__all__ = ["store_decode_tokens"]

_MAX_PREPARED = 1024

_prepared: dict[tuple[object, ...], tuple[PreparedKernel, tuple[int, ...]]] = {}


def store_decode_tokens(
    keys: Tensor,
    values: Tensor,
    key_row: Tensor,
    value_row: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    pages_per_block: int = 1,
) -> None:
    """Write token ``seq_lens - 1`` of every sequence into its block; all other bytes are unchanged.

    ``keys`` and ``values`` are ``(num_seqs, kv_heads, dim)`` with a dense last axis, the rest is as in
    :func:`~cachecore_cuda_triton.paged_attention.paged_decode_attention`: a graph may capture the call, and
    ids are not checked. A sequence of length 0 is passed over.

    Raises
    ------
    ValueError
        For operands whose shapes, dtypes, devices or strides do not fit one another.
    """
    form = (
        *(form_of(keys), form_of(values), form_of(key_row), form_of(value_row)),
        *(form_of_ids(block_table), form_of_ids(seq_lens), pages_per_block),
    )
    found = _prepared.get(form)
    if found is None:
        _check(keys, values, key_row, value_row)
        check_ids("block_table", block_table, keys, num_axes=2)
        check_ids("seq_lens", seq_lens, keys, num_axes=1)
        if len(_prepared) >= _MAX_PREPARED:
            _prepared.clear()
        found = _prepared[form] = _prepare(keys, values, key_row, value_row, pages_per_block)
    if not len(keys):
        return
    kernel, strides = found
    kernel(
        (len(keys), 1, 1),
        (keys, values, key_row, value_row, block_table, seq_lens),
        (block_table.stride(0), *strides),
    )


def _prepare(
    keys: Tensor, values: Tensor, key_row: Tensor, value_row: Tensor, pages_per_block: int
) -> tuple[PreparedKernel, tuple[int, ...]]:
    num_heads, key_dim = keys.shape[1:]
    value_dim, page_size = values.shape[-1], key_row.shape[-3]
    constants = {
        "HEADS": num_heads,
        "HEADS_PAD": triton.next_power_of_2(num_heads),
        "KEY_DIM": key_dim,
        "KEY_PAD": triton.next_power_of_2(key_dim),
        "VALUE_DIM": value_dim,
        "VALUE_PAD": triton.next_power_of_2(value_dim),
        "BLOCK_SIZE": page_size * (key_row.shape[1] if key_row.dim() == 5 else pages_per_block),
        "PAGE_SIZE": page_size,
    }
    strides = (
        *(keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)),
        *(*row_strides(key_row, pages_per_block), *row_strides(value_row, pages_per_block)),
    )
    return PreparedKernel(store, keys.device, constants, num_warps=4), strides


def _check(keys: Tensor, values: Tensor, key_row: Tensor, value_row: Tensor) -> None:
    check_rows(keys, key_row, value_row)
    for name, new, row in (("keys", keys, key_row), ("values", values, value_row)):
        fits = new.dim() == 3 and new.shape[1:] == row.shape[-2:] and new.stride(-1) == 1
        if not fits or new.dtype != row.dtype or new.device != row.device:
            raise ValueError(
                f"{name} is {named(new)}; expected (num_seqs, *{tuple(row.shape[-2:])}) as in {named(row)}"
            )
    if len(keys) != len(values):
        raise ValueError(f"keys are of {len(keys)} sequences and values of {len(values)}; both need the same")
