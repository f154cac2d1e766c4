"""Fixtures: pools whose free memory is poisoned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

if os.environ.get("CACHECORE_TEST_DEVICE", "cpu") == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are decorated: transformers imports triton's own

import pytest
import torch
from cachecore_transformers import CachePool, open_pool
from twins import DEVICE, poison, shape_options, tiny_config


@pytest.fixture
def make_pool() -> Iterator[Any]:
    """Open pools with poisoned memory; close them at the end."""
    pools: list[CachePool] = []

    def make(name: str, **options: Any) -> CachePool:
        options = {
            "dtype": torch.float32,
            "block_size": 4,
            "max_tokens": 64,
            "device": DEVICE,
            **shape_options(name),
            **options,
        }
        if "plans" in options:
            del options["dtype"], options["block_size"]
        pools.append(open_pool(tiny_config(name), **options))
        poison(pools[-1])
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()
