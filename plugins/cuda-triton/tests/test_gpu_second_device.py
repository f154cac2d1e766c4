"""Everything on a second GPU while the first one is current, as in an engine of several devices in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cachecore_cuda_triton.attention_reference import paged_decode_attention_reference
from cachecore_cuda_triton.decode_store import store_decode_tokens
from cachecore_cuda_triton.paged_attention import paged_decode_attention
from engines import open_gpu, plan_set
from test_attention import TOLERANCE, relative_error, rows_of
from test_gpu_swap import rows_spec

pytestmark = pytest.mark.gpu


@pytest.fixture
def second(gpu: torch.device) -> torch.device:
    """A GPU that is not the current one."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two NVIDIA GPUs")
    return torch.device("cuda", 1)


@pytest.mark.parametrize("way", ["staged", "pitched", "direct"])
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("threads", [0, 1])
def test_an_engine(second: torch.device, monkeypatch: pytest.MonkeyPatch, way: str, stable: bool, threads: int) -> None:
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", way)
    plans = plan_set(rows_spec(4, 1 << 16), tokens=1)
    with open_gpu(plans, 9, 4, device=str(second), stable_addresses=stable) as engine:
        pool = engine.allocation().pools[0].random_(0, 256)
        expected = pool.clone()
        expected[:, 3] = expected[:, 1]
        expected[:, 4] = expected[:, 2]
        expected[:, 5] = 0
        expected[:, 6], expected[:, 7] = expected[:, 1], expected[:, 2]
        torch.cuda.synchronize(second)

        def move() -> None:
            engine.copy_blocks({1: 3})
            engine.copy_blocks_on_device(torch.tensor([[2], [4]], device=second))
            engine.zero_blocks([5])
            engine.swap_out({3: 0, 4: 2}).synchronize()
            engine.swap_in({0: 6, 2: 7}).synchronize()

        if threads:
            with ThreadPoolExecutor(threads) as thread:
                thread.submit(move).result()
        else:
            move()

        assert torch.equal(pool, expected)
        engine.sleep(1)
        engine.wake()
        assert torch.equal(engine.allocation().pools[0], expected)
    assert torch.cuda.current_device() == 0


def test_attention_and_the_store_before_it(second: torch.device) -> None:
    keys, values = rows_of("packed", (8, 2, 32), 2, torch.bfloat16, second)
    query, new = (torch.randn(3, heads, 32, device=second).bfloat16() for heads in (6, 2))
    table = torch.stack([torch.randperm(9)[:4] for _ in range(3)]).to(second, torch.int32)
    seq_lens = torch.tensor([16, 1, 61], device=second)

    store_decode_tokens(new, new, keys, values, table, seq_lens, pages_per_block=2)
    out = paged_decode_attention(query, keys, values, table, seq_lens, 0.3, num_splits=2, pages_per_block=2)

    assert torch.equal(keys[2 * int(table[1, 0]), 0], new[1])
    expected = paged_decode_attention_reference(query, keys, values, table, seq_lens, 0.3, pages_per_block=2)
    assert relative_error(out, expected) < TOLERANCE[torch.bfloat16]
