"""Paged decode attention against its float64 definition, and a case worked by hand."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from cachecore_cuda_triton.attention_reference import paged_decode_attention_reference
from cachecore_cuda_triton.paged_attention import paged_decode_attention
from torch import Tensor

from cachecore import BlockCacheGeometry, CacheTensorSpec, DeviceSpec, StandardLayoutPolicy, plan_from_specs
from cachecore.layout_kinds import (
    block_major_layout,
    contiguous_layout,
    packed_layout,
    page_major_layout,
    row_layout,
)

LAYOUTS = {
    "packed": packed_layout,
    "row": row_layout,
    "contiguous": contiguous_layout,
    "page-major": page_major_layout,
}

# Rounding of the operands' dtype alone: weights are rounded to it before they meet the values.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def rows_of(
    kind: str, shape: tuple[int, int, int], pages: int, dtype: torch.dtype, device: torch.device, num_blocks: int = 9
) -> tuple[Tensor, Tensor]:
    """Keys and values of row 1 of an allocation in layout ``kind``, every byte of it random."""
    from cachecore_torch_default import TorchBackend

    specs = [
        CacheTensorSpec(name=name, shape=shape, dtype=str(dtype).removeprefix("torch."), row_ids=(0, 1))
        for name in ("k_cache", "v_cache")
    ]
    geometry = BlockCacheGeometry(shape[0] * pages, shape[0])
    plan = plan_from_specs(specs, geometry, StandardLayoutPolicy())
    layout = block_major_layout(specs, pages) if kind == "block-major" else LAYOUTS[kind](specs)
    backend = TorchBackend()
    entries = num_blocks * pages // layout.pages_per_entry
    allocation = backend.allocate(layout, entries, DeviceSpec.parse(device))
    views = [backend.row_view(allocation, index, spec, 1) for index, spec in enumerate(plan.specs)]
    for view in views:
        view.copy_(torch.randn(view.shape, device=device).to(dtype))
    return views[0], views[1]


def relative_error(out: Tensor, expected: Tensor) -> float:
    assert not out.isnan().any()
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", [*LAYOUTS, "block-major"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("num_splits", "pages"), [(None, 2), (3, 1), (1, 3)])
def test_equals_the_definition(
    kind: str, dtype: torch.dtype, num_splits: int | None, pages: int, device: torch.device
) -> None:
    torch.manual_seed(0)
    keys, values = rows_of(kind, (8, 2, 32), pages, dtype, device)
    query = torch.randn(3, 6, 32, device=device).to(dtype)
    table = torch.stack([torch.randperm(9)[:4] for _ in range(3)]).to(device, torch.int32)
    # Tokens in the table: none of the first block's left over, one, and all but three.
    seq_lens = torch.tensor([8 * pages, 1, 4 * 8 * pages - 3], device=device)
    starts = torch.tensor([0, 0, 5], device=device)
    options: dict[str, Any] = {"starts": starts, "pages_per_block": pages}
    expected = paged_decode_attention_reference(query, keys, values, table, seq_lens, 0.3, **options)

    out = paged_decode_attention(query, keys, values, table, seq_lens, 0.3, num_splits=num_splits, **options)

    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("starts", [None, [3, 0, 40]])
def test_a_mask_hides_tokens_anywhere(num_splits: int, starts: list[int] | None, device: torch.device) -> None:
    torch.manual_seed(0)
    keys, values = rows_of("packed", (16, 2, 32), 2, torch.float32, device, num_blocks=30)
    query = torch.randn(3, 6, 32, device=device)
    table = torch.randperm(30, device=device).view(3, 10)
    seq_lens = torch.tensor([300, 7, 320], device=device)
    mask = torch.rand(3, 400, device=device) < 0.5
    mask[0, :200] = False  # whole tiles of nothing
    mask[2] = False  # nothing at all
    shared: dict[str, Any] = {
        "starts": None if starts is None else torch.tensor(starts, device=device),
        "mask": mask,
        "pages_per_block": 2,
    }
    expected = paged_decode_attention_reference(query, keys, values, table, seq_lens, 0.3, **shared)

    out = paged_decode_attention(query, keys, values, table, seq_lens, 0.3, num_splits=num_splits, **shared)

    assert relative_error(out, expected) < 1e-5
    assert not out[2].any()


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "key_dim", "value_dim"), [(5, 1, 24, 16), (4, 4, 80, 80), (20, 1, 16, 48)]
)
def test_any_number_of_heads_and_dims(
    num_heads: int, num_kv_heads: int, key_dim: int, value_dim: int, device: torch.device
) -> None:
    torch.manual_seed(1)
    pool = torch.randn(6, 4, num_kv_heads, key_dim + value_dim, device=device)
    keys, values = pool[..., :key_dim], pool[..., key_dim:]
    query = torch.randn(2, num_heads, key_dim, device=device)
    table = torch.tensor([[4, 0, 2], [1, 5, 3]], device=device)
    seq_lens = torch.tensor([11, 6], device=device)
    expected = paged_decode_attention_reference(query, keys, values, table, seq_lens, 0.2)

    out = paged_decode_attention(query, keys, values, table, seq_lens, 0.2, num_splits=2)

    assert relative_error(out, expected) < 1e-5


def test_weights_worked_by_hand(device: torch.device) -> None:
    # Two tokens in blocks 3 and 1 of one token each; scores 0 and log 3 give weights 1/4 and 3/4.
    keys = torch.zeros(4, 1, 1, 16, device=device)
    values = torch.full((4, 1, 1, 16), 1e6, device=device)
    keys[1, 0, 0, 0] = log(3)
    values[3], values[1] = 8.0, 16.0
    query = torch.zeros(1, 1, 16, device=device)
    query[0, 0, 0] = 1.0
    table = torch.tensor([[3, 1, -7]], device=device)

    out = paged_decode_attention(query, keys, values, table, torch.tensor([2], device=device), 1.0)

    # 8 / 4 + 16 * 3 / 4 = 14
    assert out[0, 0].tolist() == pytest.approx([14.0] * 16)


@pytest.mark.parametrize("num_splits", [1, 2])
def test_a_sequence_that_sees_nothing_gets_zeros(num_splits: int, device: torch.device) -> None:
    pool = torch.randn(2, 4, 1, 16, device=device)
    query = torch.randn(2, 2, 16, device=device)
    out = torch.full((2, 2, 16), 7.0, device=device)
    seq_lens = torch.tensor([0, 3], device=device)
    table = torch.zeros(2, 1, dtype=torch.int32, device=device)

    paged_decode_attention(query, pool, pool, table, seq_lens, 1.0, num_splits=num_splits, out=out)

    assert not out[0].any()
    assert out[1].any()


def bad_operands(device: torch.device) -> dict[str, Any]:
    return {
        "query": torch.randn(2, 4, 16, device=device),
        "key_row": torch.randn(3, 4, 2, 16, device=device),
        "value_row": torch.randn(3, 4, 2, 16, device=device),
        "block_table": torch.zeros(2, 1, dtype=torch.int32, device=device),
        "seq_lens": torch.ones(2, dtype=torch.int32, device=device),
    }


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("query", lambda x: x.double(), "expected bfloat16"),
        ("query", lambda x: x[:, :3], "multiple of theirs"),
        ("query", lambda x: x[0], "expected \\(num_seqs"),
        ("key_row", lambda x: x.half(), "one dtype"),
        ("key_row", lambda x: x.transpose(2, 3), "dense"),
        ("value_row", lambda x: x[:2], "only the dims may differ"),
        ("block_table", lambda x: x.float(), "int32 or int64"),
        ("seq_lens", lambda x: x[:1], "of 2 sequences"),
        ("out", lambda _: torch.empty(2, 4, 8), "out is"),
        ("starts", lambda _: torch.zeros(3, dtype=torch.int64), "starts is"),
        ("mask", lambda _: torch.ones(2, 4), "mask is"),
        ("mask", lambda _: torch.ones(3, 4, dtype=torch.bool), "of 2 sequences"),
    ],
)
def test_operands_that_do_not_fit_are_refused(name: str, change: Any, told: str, device: torch.device) -> None:
    operands = bad_operands(device)
    operands[name] = change(operands.get(name))

    with pytest.raises(ValueError, match=told):
        paged_decode_attention(**operands, scale=1.0)
