"""The kernels' other launches: few programs for many tiles, and zeroing."""

from __future__ import annotations

from array import array

import pytest
import torch
from cachecore_cuda_triton import launch, tiles
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import current_stream, launch_copy, launch_copy_few, launch_zero, upload_ids
from cachecore_cuda_triton.tiles import Run, tile_table

STRIDE = 3 * TILE_NBYTES + 64
"""Bytes between two blocks: runs of two tiles, a tail, and bytes that nobody may touch."""

LENGTH = 2 * TILE_NBYTES + 39


@pytest.mark.parametrize("num_programs", [1, 5, 1000])
def test_few_programs_copy_every_pair(num_programs: int, device: torch.device) -> None:
    src, dst = (torch.randint(0, 256, (6, STRIDE), dtype=torch.uint8, device=device) for _ in range(2))
    table = tile_table([Run(src.data_ptr(), dst.data_ptr(), STRIDE, STRIDE, LENGTH)], device, TILE_NBYTES)
    expected = dst.clone()
    expected[[5, 0, 3], :LENGTH] = src[[2, 2, 4], :LENGTH]
    ids = torch.tensor([[2, 2, -1, 4], [5, 0, 1, 3]], device=device)

    launch_copy_few(table, ids, current_stream(device), num_programs=num_programs)

    assert torch.equal(dst, expected)


def test_some_of_the_pairs(device: torch.device) -> None:
    src, dst = (torch.randint(0, 256, (6, STRIDE), dtype=torch.uint8, device=device) for _ in range(2))
    table = tile_table([Run(src.data_ptr(), dst.data_ptr(), STRIDE, STRIDE, LENGTH)], device, TILE_NBYTES)
    expected = dst.clone()
    expected[[1, 2], :LENGTH] = src[[4, 5], :LENGTH]
    ids = upload_ids(device, array("q", [3, 4, 5, 0]), array("q", [0, 1, 2, 3]))

    launch_copy(table, ids, current_stream(device), start=1, count=2)

    assert torch.equal(dst, expected)


@pytest.mark.parametrize("long_run", [1, 1 << 30], ids=["tiles-first", "pairs-first"])
@pytest.mark.parametrize("most", [2, 65535])
def test_either_order_and_more_than_an_axis_takes(
    long_run: int, most: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "_LONG_RUN", long_run)
    monkeypatch.setattr(launch, "_MAX_AXIS_Y", most)
    src, dst = (torch.randint(0, 256, (6, STRIDE), dtype=torch.uint8, device=device) for _ in range(2))
    table = tile_table([Run(src.data_ptr(), dst.data_ptr(), STRIDE, STRIDE, LENGTH)], device, TILE_NBYTES)
    assert table.tiles_first == (long_run == 1)
    assert table.num_tiles == 5  # two whole, 32 bytes, a word of 4, 3 bytes: more than pairs
    expected = dst.clone()
    expected[[5, 0, 3], :LENGTH] = src[[2, 2, 4], :LENGTH]

    launch_copy(table, torch.tensor([[2, 2, -1, 4], [5, 0, 1, 3]], device=device), current_stream(device))

    assert torch.equal(dst, expected)


def test_zeroing_touches_the_listed_blocks_only(device: torch.device) -> None:
    pool = torch.randint(1, 256, (6, STRIDE), dtype=torch.uint8, device=device)
    start = pool.data_ptr() + 16
    table = tile_table([Run(start, start, STRIDE, STRIDE, LENGTH)], device, TILE_NBYTES)
    expected = pool.clone()
    expected[[0, 5], 16 : 16 + LENGTH] = 0

    launch_zero(table, upload_ids(device, array("q", [5, -1, 0]))[0], current_stream(device))

    assert torch.equal(pool, expected)
