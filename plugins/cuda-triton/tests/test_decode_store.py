"""New tokens of every sequence in their blocks, and every other byte as it was."""

from __future__ import annotations

import pytest
import torch
from cachecore_cuda_triton.decode_store import store_decode_tokens
from test_attention import LAYOUTS, rows_of


@pytest.mark.parametrize("kind", [*LAYOUTS, "block-major"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_other_byte_is_unchanged(kind: str, dtype: torch.dtype, device: torch.device) -> None:
    keys, values = rows_of(kind, (8, 3, 20), 2, dtype, device)
    table = torch.tensor([[4, 0], [1, 5], [7, 2]], dtype=torch.int32, device=device)
    new = torch.randn(3, 2, 3, 20, device=device).to(dtype)  # strided, as a model hands them
    # Token 12 is slot 4 of page 1 of block 4; token 16 the first of block 5; the third sequence has none.
    places = [(0, 4, 1, 4), (1, 5, 0, 0)]
    expected = keys.clone(), values.clone()
    for sequence, block, page, slot in places:
        at = (block, page, slot) if keys.dim() == 5 else (block * 2 + page, slot)
        expected[0][at], expected[1][at] = new[sequence, 0], new[sequence, 1]

    store_decode_tokens(
        new[:, 0], new[:, 1], keys, values, table, torch.tensor([13, 17, 0], device=device), pages_per_block=2
    )

    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("keys", lambda x: x.half(), "both need one dtype"),
        ("keys", lambda x: x[:, :1], "keys is"),
        ("values", lambda x: x[:1], "of 2 sequences and values of 1"),
        ("value_row", lambda x: x[:2], "only the dims may differ"),
        ("block_table", lambda x: x[0], "2 axes"),
        ("seq_lens", lambda x: x.float(), "int32 or int64"),
    ],
)
def test_operands_that_do_not_fit_are_refused(name, change, told, device: torch.device) -> None:
    operands = {
        "keys": torch.randn(2, 2, 16, device=device),
        "values": torch.randn(2, 2, 16, device=device),
        "key_row": torch.zeros(3, 4, 2, 16, device=device),
        "value_row": torch.zeros(3, 4, 2, 16, device=device),
        "block_table": torch.zeros(2, 1, dtype=torch.int64, device=device),
        "seq_lens": torch.ones(2, dtype=torch.int64, device=device),
    }
    operands[name] = change(operands[name])

    with pytest.raises(ValueError, match=told):
        store_decode_tokens(**operands)

    assert not operands["key_row"].any()
