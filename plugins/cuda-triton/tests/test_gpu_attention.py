"""Paged decode attention where only a GPU shows it: graphs, far offsets, many shares."""

from __future__ import annotations

import pytest
import torch
from cachecore_cuda_triton.decode_store import store_decode_tokens
from cachecore_cuda_triton.paged_attention import paged_decode_attention

pytestmark = pytest.mark.gpu


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention over ``(seqs, tokens, kv_heads, dim)`` in float64."""
    group = query.shape[1] // keys.shape[2]
    keys = keys.double().repeat_interleave(group, 2)
    values = values.double().repeat_interleave(group, 2)
    score = torch.einsum("shd,sthd->sht", query.double(), keys) * scale
    return torch.einsum("sht,sthd->shd", score.softmax(-1), values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_splits", [None, 1, 7])
def test_long_sequences(gpu: torch.device, dtype: torch.dtype, num_splits: int | None) -> None:
    torch.manual_seed(0)
    pool = torch.randn(256, 2, 16, 8, 128, device=gpu, dtype=dtype)  # pages with keys and values side by side
    keys, values = pool[:, 0], pool[:, 1]
    query = torch.randn(2, 32, 128, device=gpu, dtype=dtype)
    table = torch.randperm(64, device=gpu).view(2, 32)  # blocks of 4 pages
    entries = (table[:, :, None] * 4 + torch.arange(4, device=gpu)).view(2, -1)
    seen = [part[entries].reshape(2, 2048, 8, 128)[:, :2011] for part in (keys, values)]
    expected = dense(query, *seen, 128**-0.5)
    seq_lens = torch.full((2,), 2011, device=gpu)

    out = paged_decode_attention(
        query, keys, values, table, seq_lens, 128**-0.5, pages_per_block=4, num_splits=num_splits
    )

    assert float((out.double() - expected).norm() / expected.norm()) < (1e-2 if dtype == torch.bfloat16 else 2e-3)


def test_offsets_beyond_32_bits(gpu: torch.device) -> None:
    # 24,576 pages of 256 KiB are 6 GiB; in elements of two bytes the last stands beyond 2**31.
    pool = torch.zeros(24_576, 16, 64, 128, device=gpu, dtype=torch.bfloat16)
    pool[-1].normal_()
    query = torch.randn(1, 64, 128, device=gpu, dtype=torch.bfloat16)
    expected = dense(query, pool[-1:], pool[-1:], 0.1)
    table = torch.tensor([[24_575]], device=gpu)

    out = paged_decode_attention(query, pool, pool, table, torch.tensor([16], device=gpu), 0.1)

    assert float((out.double() - expected).norm() / expected.norm()) < 1e-2


def test_a_token_is_stored_beyond_32_bits(gpu: torch.device) -> None:
    # Pages of 131,072 elements, keys and values side by side: 2**31 elements are 16,384 of them.
    pool = torch.zeros(17_000, 2, 16, 32, 128, device=gpu, dtype=torch.bfloat16)
    keys, values = pool[:, 0], pool[:, 1]
    new = torch.randn(1, 2, 32, 128, device=gpu).to(torch.bfloat16)
    table = torch.tensor([[16_999]], device=gpu)

    store_decode_tokens(new[:, 0], new[:, 1], keys, values, table, torch.tensor([4], device=gpu), pages_per_block=1)

    assert torch.equal(pool[-1, 0, 3], new[0, 0])
    assert torch.equal(pool[-1, 1, 3], new[0, 1])
    assert int(torch.count_nonzero(pool)) == int(torch.count_nonzero(new))


def test_a_graph_is_replayed_with_longer_sequences(gpu: torch.device) -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 64, 16, 2, 64, device=gpu, dtype=torch.float16)
    query = torch.randn(1, 8, 64, device=gpu, dtype=torch.float16)
    table = torch.randperm(64, device=gpu)[None]
    seq_lens = torch.tensor([5], device=gpu)
    out = torch.empty(1, 8, 64, device=gpu, dtype=torch.float16)
    paged_decode_attention(query, keys, values, table, seq_lens, 0.1, out=out)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_decode_attention(query, keys, values, table, seq_lens, 0.1, out=out)

    for length in (1, 16, 17, 1000, 1024):
        seq_lens.fill_(length)
        graph.replay()
        seen = [part[table[0]].reshape(1, 1024, 2, 64)[:, :length] for part in (keys, values)]
        expected = dense(query, *seen, 0.1)
        assert float((out.double() - expected).norm() / expected.norm()) < 2e-3
