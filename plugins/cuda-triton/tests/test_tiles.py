"""Segments cut into tiles: widths, tails and places worked by hand."""

from __future__ import annotations

import pytest
import torch
from cachecore_cuda_triton.tiles import Run, runs_of, tile_table

from cachecore import CopySegment

CPU = torch.device("cpu")


def rows_of(run: Run, tile_nbytes: int) -> list[list[int]]:
    """The table's rows, with places relative to the run's own."""
    table = tile_table([run], CPU, tile_nbytes)
    rows = table.tiles[: table.num_tiles].tolist()
    base = table.tiles.data_ptr()
    return [[row[0] + base - run.src, row[1] + base - run.dst, *row[2:]] for row in rows]


def test_a_run_is_cut_at_the_tile() -> None:
    run = Run(1 << 20, 1 << 21, 4096, 8192, 80)

    # 80 = 32 + 32 + 16, all in accesses of 16 bytes
    assert rows_of(run, 32) == [[0, 0, 4096, 8192, 32, 16], [32, 32, 4096, 8192, 32, 16], [64, 64, 4096, 8192, 16, 16]]


def test_a_tail_takes_the_next_width_that_fits() -> None:
    run = Run(1 << 20, 1 << 21, 4096, 8192, 39)

    # 39 = 2 x 16 + 1 x 4 + 3 x 1
    assert [row[4:] for row in rows_of(run, 64)] == [[32, 16], [4, 4], [3, 1]]


@pytest.mark.parametrize(
    ("run", "width"),
    [
        (Run(64, 128, 256, 512, 64), 16),
        (Run(68, 128, 256, 512, 64), 4),  # the source starts at 4 modulo 16
        (Run(64, 128, 256, 516, 64), 4),  # the second destination would
        (Run(64, 130, 256, 512, 64), 1),
    ],
)
def test_the_widest_access_that_all_addresses_allow(run: Run, width: int) -> None:
    assert {row[5] for row in rows_of(run, 4096)} == {width}


def test_pages_of_a_segment_become_runs() -> None:
    segment = CopySegment(1, 10, 100, 30, 0, 7, 50, 25, 20, 2)

    # page 0 and page 1, over pools at 1000 and 2000 (sources), 5000 (destination)
    assert runs_of([segment], [1000, 2000], [5000]) == [
        Run(2010, 5007, 100, 50, 20),
        Run(2040, 5032, 100, 50, 20),
    ]


@pytest.mark.parametrize(
    ("lengths", "tiles_first"),
    [
        ([1 << 19], True),
        ([(1 << 19) - 16], False),
        ([1 << 20, 1 << 18, 1 << 18], True),
        ([1 << 19, 1 << 18, 1 << 18], False),
    ],
)
def test_tiles_go_first_where_most_bytes_stand_in_long_runs(lengths: list[int], tiles_first: bool) -> None:
    runs = [Run(1 << 20, 1 << 21, 4096, 4096, length) for length in lengths]

    assert tile_table(runs, CPU, 4096).tiles_first is tiles_first


def test_nothing_to_move_is_an_empty_table() -> None:
    table = tile_table([], CPU, 4096)

    assert (table.num_tiles, table.widths) == (0, 0)
