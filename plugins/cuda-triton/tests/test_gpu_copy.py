"""Block copies where only a GPU shows it: a caller's stream, many rows, and engines side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engines import open_gpu, plan_set

from cachecore import CacheTensorSpec

pytestmark = pytest.mark.gpu


def rows_spec(rows: int, nbytes: int) -> list[CacheTensorSpec]:
    ids = tuple(range(rows))
    return [CacheTensorSpec(name="rows", shape=(nbytes,), dtype="uint8", row_ids=ids, consumer_rows=ids)]


def test_a_copy_is_ordered_on_the_callers_stream(gpu: torch.device) -> None:
    with open_gpu(plan_set(rows_spec(4, 1 << 16), tokens=1), 64) as engine:
        pool = engine.allocation().pools[0]
        stream = torch.cuda.Stream()
        for repeat in range(1, 6):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)  # the write below is still to come when the copy is queued
                pool[:, 0] = repeat
                done = engine.copy_blocks({0: 63})
            done.wait()
            assert int(pool[:, 63].min()) == int(pool[:, 63].max()) == repeat


def test_a_thread_that_never_used_the_gpu_may_copy(gpu: torch.device) -> None:
    with open_gpu(plan_set(rows_spec(4, 1 << 16), tokens=1), 8) as engine, ThreadPoolExecutor(1) as thread:
        pool = engine.allocation().pools[0].random_(0, 256)
        expected = pool.clone()
        expected[:, 3] = expected[:, 1]
        torch.cuda.synchronize()

        thread.submit(lambda: engine.copy_blocks({1: 3}).synchronize()).result()

        assert torch.equal(pool, expected)


def test_more_tiles_than_a_grid_axis_holds(gpu: torch.device) -> None:
    # 70,000 > 65,535 rows of one tile each
    with open_gpu(plan_set(rows_spec(70_000, 64), tokens=1), 4) as engine:
        pool = engine.allocation().pools[0].random_(0, 256)
        expected = pool.clone()
        expected[:, 3] = expected[:, 1]

        engine.copy_blocks({1: 3})

        assert torch.equal(pool, expected)


def test_two_engines_share_nothing(gpu: torch.device) -> None:
    engines = [open_gpu(plan_set(rows_spec(2, 64), tokens=1), 4) for _ in range(2)]
    for number, engine in enumerate(engines):
        engine.allocation().pools[0].fill_(number + 1)

    engines[0].copy_blocks({0: 1})
    engines[0].close()
    engines[1].copy_blocks({0: 1})

    assert bool((engines[1].allocation().pools[0] == 2).all())
    engines[1].close()
