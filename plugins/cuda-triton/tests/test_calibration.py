"""What is chosen from measured rates, and when measurements that were kept are not taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cachecore_cuda_triton import calibration
from cachecore_cuda_triton.calibration import Calibration

FAST, SLOW = 50e9, 10e9


def measured(*, rows: float = SLOW, pieces: float = FAST, staged: float = 40e9) -> Calibration:
    """Rows of 2 KiB and blocks of 16 KiB at 1 GB/s, all longer ones as told."""
    by_length = {str(run): rows for run in calibration._RUNS} | {str(calibration._RUNS[0]): 1e9}
    by_piece = {str(run): pieces for run in calibration._PIECES} | {str(calibration._PIECES[0]): 1e9}
    return Calibration(staged, by_length, by_piece, 0)


def test_a_block_that_is_one_run_goes_whole_where_that_is_fast() -> None:
    way, reason = measured().way([(1 << 20, 1)])

    assert way == "whole"
    assert reason == "a block is one run; 50.0 GB/s measured of runs like this, 40.0 of staging"


@pytest.mark.parametrize("length", [1 << 14, 1 << 10])
def test_short_blocks_are_staged_though_they_are_one_run(length: int) -> None:
    assert measured().way([(length, 1)])[0] == "staged"


def test_rows_are_told_what_would_make_a_block_one_run() -> None:
    way, reason = measured(rows=FAST).way([(65536, 1), (65536, 1)])

    assert way == "pitched"
    assert reason.endswith("a plan with LayoutHints(one_run_per_block=True) moves whole blocks")


def test_row_length_by_row_length() -> None:
    way, reason = measured(rows=FAST).way([(65536, 4), (2048, 4)])

    # 4 x 65536 / 50e9 + 4 x 2048 / 1e9 s for 270336 bytes
    assert way == "pitched+staged"
    assert reason.startswith("20.1 GB/s measured of pitched rows like these, 40.0 of staging, row length by row length")


@pytest.mark.parametrize(("rows", "way"), [(40e9 / 1.3, "pitched"), (40e9 / 1.31, "staged")])
def test_staging_must_be_clearly_faster(rows: float, way: str) -> None:
    assert measured(rows=rows).way([(65536, 2)])[0] == way


@pytest.mark.parametrize("lost", [None, "pieces", "pitched", "a length"])
def test_measurements_of_another_release_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration._save("a GPU", {"in": measured(), "out": measured()})
    kept = json.loads(calibration.calibration_file().read_text())
    if lost == "a length":
        kept["a GPU"]["in"]["pieces"].popitem()
    elif lost is not None:
        del kept["a GPU"]["in"][lost]
    calibration.calibration_file().write_text(json.dumps(kept))

    assert calibration._load("a GPU") == (None if lost else {"in": measured(), "out": measured()})
