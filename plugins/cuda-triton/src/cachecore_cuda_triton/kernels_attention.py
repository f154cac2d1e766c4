"""Triton kernels of paged decode attention: keys and values are read where they stand, through block tables.

Strides are arguments, so packed, row and contiguous layouts are read alike, and a logical block may be
any number of kernel pages. Token positions are relative to the table: token ``t`` of a sequence stands
in block ``table[t // block_size]``, in its page ``t % block_size // page_size``.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["attend", "combine", "store"]

_COUNTS = ["num_splits", "stride_table", "stride_mask"]
_IDS = ["tables", "starts", "stops", "masks"]
"""Views into somebody's tables: whether their addresses are multiples of 16 makes no other kernel."""


@triton.jit
def _attend_tile(
    tile_query, key_base, value_base, table, mask, first, stop, best, total, summed, scale_log2,
    stride_key_block, stride_key_page, stride_key_token, stride_value_block, stride_value_page, stride_value_token,
    HAS_MASK: tl.constexpr, KEY_DIM: tl.constexpr, KEY_PAD: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUE_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """``TILE`` tokens from ``first`` on, added to the running maximum, weight and sum."""
    key_lane = tl.arange(0, KEY_PAD)
    value_lane = tl.arange(0, VALUE_PAD)
    token = first + tl.arange(0, TILE)
    inside = token < stop
    if HAS_MASK:
        inside = inside & (tl.load(mask + token, mask=inside, other=0) != 0)
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    page = token % BLOCK_SIZE // PAGE_SIZE
    slot = token % PAGE_SIZE
    key_token = block * stride_key_block + page * stride_key_page + slot * stride_key_token
    value_token = block * stride_value_block + page * stride_value_page + slot * stride_value_token
    key_mask = inside[:, None]
    value_mask = inside[:, None]
    if KEY_PAD != KEY_DIM:
        key_mask = key_mask & (key_lane[None, :] < KEY_DIM)
    if VALUE_PAD != VALUE_DIM:
        value_mask = value_mask & (value_lane[None, :] < VALUE_DIM)
    tile_keys = tl.load(key_base + key_token[:, None] + key_lane[None, :], mask=key_mask, other=0.0)
    tile_values = tl.load(value_base + value_token[:, None] + value_lane[None, :], mask=value_mask, other=0.0)
    if INTERPRETED:  # it multiplies the bits of a bfloat16
        tile_query = tile_query.to(tl.float32)
        tile_keys = tile_keys.to(tl.float32)
        tile_values = tile_values.to(tl.float32)
    score = tl.dot(tile_query, tl.trans(tile_keys), input_precision=PRECISION) * scale_log2
    score = tl.where(inside[None, :], score, float("-inf"))
    higher = tl.maximum(best, tl.max(score, 1))
    level = higher
    if HAS_MASK:  # a tile may see nothing: no weight, instead of the difference of two infinities
        level = tl.where(higher == float("-inf"), 0.0, higher)
    weight = tl.math.exp2(score - level[:, None])
    shrink = tl.math.exp2(best - level)
    total = total * shrink + tl.sum(weight, 1)
    summed = summed * shrink[:, None]
    summed = tl.dot(weight.to(tile_values.dtype), tile_values, summed, input_precision=PRECISION)
    return higher, total, summed


@triton.jit(do_not_specialize=_COUNTS, do_not_specialize_on_alignment=_IDS)
def attend(
    query, keys, values, tables, starts, stops, masks, out, partial, partial_lse,
    scale_log2, num_splits, stride_table, stride_mask,
    stride_query_seq, stride_query_head, stride_out_seq, stride_out_head,
    stride_key_block, stride_key_page, stride_key_token, stride_key_head,
    stride_value_block, stride_value_page, stride_value_token, stride_value_head,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, KEY_DIM: tl.constexpr, KEY_PAD: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr,
    TILE: tl.constexpr, HAS_STARTS: tl.constexpr, HAS_MASK: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One program a sequence (axis x), key head (axis y) and share of the tokens (axis z).

    The ``GROUP`` query heads of one key head are the rows of every product. With ``SPLIT`` each program
    writes its share and the logarithm of its weight for :func:`combine`; without, the result.
    """
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    num_heads = tl.num_programs(1) * GROUP
    start = 0
    if HAS_STARTS:
        start = tl.load(starts + sequence).to(tl.int32)
    stop = tl.load(stops + sequence).to(tl.int32)
    mask = masks + sequence * stride_mask - start  # its first column is the first token seen
    if SPLIT:
        # Whole tiles, so that a share never begins within one.
        share = tl.cdiv(tl.cdiv(stop - start, num_splits), TILE) * TILE
        start += split * share
        stop = tl.minimum(stop, start + share)

    row = tl.arange(0, GROUP_PAD)
    row_mask = row < GROUP
    key_lane = tl.arange(0, KEY_PAD)
    value_lane = tl.arange(0, VALUE_PAD)
    query_at = query + sequence * stride_query_seq + (head * GROUP + row[:, None]) * stride_query_head
    query_mask = row_mask[:, None] & (key_lane[None, :] < KEY_DIM)
    tile_query = tl.load(query_at + key_lane[None, :], mask=query_mask, other=0.0)
    best = tl.full([GROUP_PAD], float("-inf"), dtype=tl.float32)
    total = tl.zeros([GROUP_PAD], dtype=tl.float32)
    summed = tl.zeros([GROUP_PAD, VALUE_PAD], dtype=tl.float32)
    key_base = keys + head.to(tl.int64) * stride_key_head
    value_base = values + head.to(tl.int64) * stride_value_head
    table = tables + sequence * stride_table
    if INTERPRETED:  # it has no ranges of what was loaded
        first = start
        while first < stop:
            best, total, summed = _attend_tile(
                tile_query, key_base, value_base, table, mask, first, stop, best, total, summed, scale_log2,
                stride_key_block, stride_key_page, stride_key_token,
                stride_value_block, stride_value_page, stride_value_token,
                HAS_MASK, KEY_DIM, KEY_PAD, VALUE_DIM, VALUE_PAD, BLOCK_SIZE, PAGE_SIZE, TILE, PRECISION, INTERPRETED,
            )  # fmt: skip
            first += TILE
    else:
        for first in range(start, stop, TILE):
            best, total, summed = _attend_tile(
                tile_query, key_base, value_base, table, mask, first, stop, best, total, summed, scale_log2,
                stride_key_block, stride_key_page, stride_key_token,
                stride_value_block, stride_value_page, stride_value_token,
                HAS_MASK, KEY_DIM, KEY_PAD, VALUE_DIM, VALUE_PAD, BLOCK_SIZE, PAGE_SIZE, TILE, PRECISION, INTERPRETED,
            )  # fmt: skip

    query_head = head * GROUP + row
    value_out = row_mask[:, None] & (value_lane[None, :] < VALUE_DIM)
    # A sequence without tokens, or a share without any, adds nothing: zeros, and a weight of zero.
    divisor = tl.where(total == 0.0, 1.0, total)
    summed = summed / divisor[:, None]
    if SPLIT:
        share_row = (sequence * num_heads + query_head) * num_splits + split
        tl.store(partial + share_row[:, None] * VALUE_DIM + value_lane[None, :], summed, mask=value_out)
        tl.store(partial_lse + share_row, best + tl.math.log2(divisor), mask=row_mask)
    else:
        at = out + sequence * stride_out_seq + query_head[:, None] * stride_out_head
        tl.store(at + value_lane[None, :], summed.to(out.dtype.element_ty), mask=value_out)


@triton.jit(do_not_specialize=["num_splits"])
def combine(
    partial, partial_lse, out, num_splits, stride_out_seq, stride_out_head,
    VALUE_DIM: tl.constexpr, VALUE_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr,
):  # fmt: skip
    """Add up the shares of one sequence (axis x) and query head (axis y)."""
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = (sequence * tl.num_programs(1) + head) * num_splits
    split = tl.arange(0, SPLITS_PAD)
    lane = tl.arange(0, VALUE_PAD)
    weight = tl.load(partial_lse + first + split, mask=split < num_splits, other=float("-inf"))
    best = tl.max(weight, 0)
    weight = tl.math.exp2(weight - tl.where(best == float("-inf"), 0.0, best))
    total = tl.sum(weight, 0)
    mask = (split[:, None] < num_splits) & (lane[None, :] < VALUE_DIM)
    shares = tl.load(partial + (first + split[:, None]) * VALUE_DIM + lane[None, :], mask=mask, other=0.0)
    summed = tl.sum(shares * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    at = out + sequence * stride_out_seq + head * stride_out_head + lane
    tl.store(at, summed.to(out.dtype.element_ty), mask=lane < VALUE_DIM)


@triton.jit(do_not_specialize=["stride_table"], do_not_specialize_on_alignment=["tables", "stops"])
def store(
    new_keys, new_values, keys, values, tables, stops, stride_table,
    stride_new_key_seq, stride_new_key_head, stride_new_value_seq, stride_new_value_head,
    stride_key_block, stride_key_page, stride_key_token, stride_key_head,
    stride_value_block, stride_value_page, stride_value_token, stride_value_head,
    HEADS: tl.constexpr, HEADS_PAD: tl.constexpr, KEY_DIM: tl.constexpr, KEY_PAD: tl.constexpr,
    VALUE_DIM: tl.constexpr, VALUE_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Put the newest token of one sequence (axis x) where its table says."""
    sequence = tl.program_id(0).to(tl.int64)
    token = tl.load(stops + sequence).to(tl.int32) - 1
    if token >= 0:
        block = tl.load(tables + sequence * stride_table + token // BLOCK_SIZE).to(tl.int64)
        page = token % BLOCK_SIZE // PAGE_SIZE
        slot = token % PAGE_SIZE
        head = tl.arange(0, HEADS_PAD)
        lane = tl.arange(0, KEY_PAD)
        mask = (head[:, None] < HEADS) & (lane[None, :] < KEY_DIM)
        src = new_keys + sequence * stride_new_key_seq + head[:, None] * stride_new_key_head + lane[None, :]
        at = keys + block * stride_key_block + page * stride_key_page + slot * stride_key_token
        tl.store(at + head[:, None] * stride_key_head + lane[None, :], tl.load(src, mask=mask), mask=mask)
        lane = tl.arange(0, VALUE_PAD)
        mask = (head[:, None] < HEADS) & (lane[None, :] < VALUE_DIM)
        src = new_values + sequence * stride_new_value_seq + head[:, None] * stride_new_value_head + lane[None, :]
        at = values + block * stride_value_block + page * stride_value_page + slot * stride_value_token
        tl.store(at + head[:, None] * stride_value_head + lane[None, :], tl.load(src, mask=mask), mask=mask)
