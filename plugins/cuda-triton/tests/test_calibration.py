"""What is chosen from measured rates, and when measurements that were kept are not taken."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cachecore_cuda_triton import calibration, measuring
from cachecore_cuda_triton.calibration import Calibration, choose
from hypothesis import given
from hypothesis import strategies as st

from cachecore import AllocationError

CPU = torch.device("cpu")


GB = 1e9
PAYLOAD = measuring.MEASURED_NBYTES


def measured(
    pitched: dict[int, float], whole: dict[int, float] | None = None, *, wait_s: float = 0.5e-3
) -> Calibration:
    """Staging at 50 GB/s alone, and half a millisecond later beside a model."""
    beside = PAYLOAD / (PAYLOAD / (50 * GB) + 0.5e-3)
    return Calibration(50 * GB, beside, pitched, whole or {}, 1 << 18)


def test_a_block_that_is_one_run_goes_whole_where_that_is_fast() -> None:
    choice = measured({}, {1 << 20: 52 * GB}).choose([(1 << 20, 1)])

    # 32 MiB at 50 GB/s are 0.671 ms, and half a millisecond more beside a model: 28.7 GB/s
    assert choice[:3] == ("whole", (True,), 0)
    assert choice.reason == (
        "a block is one run: 52.0 GB/s measured of the copy engines, 50.0 of staging, 28.7 beside kernels that fill "
        "the device"
    )


def test_short_blocks_are_staged_though_they_are_one_run() -> None:
    assert measured({}, {4096: 5 * GB}).choose([(4096, 1)])[:3] == ("staged", (False,), 1 << 18)


def test_blocks_longer_than_any_that_was_measured_go_like_the_longest() -> None:
    assert "55.0 GB/s" in measured({}, {32 << 20: 55 * GB}).choose([(1 << 30, 1)]).reason
    assert "48.0 GB/s" in measured({1 << 20: 48 * GB}).choose([(1 << 22, 1), (1 << 22, 1)]).reason


@pytest.mark.parametrize(("rate", "way"), [(28.8 * GB, "pitched"), (28.6 * GB, "staged")])
def test_staging_counts_as_what_it_is_beside_a_model(rate: float, way: str) -> None:
    choice = measured({8192: rate}).choose([(8192, 40), (8192, 40)])

    assert choice[:3] == (way, (way == "pitched",) * 2, 0 if way == "pitched" else 1 << 18)


@pytest.mark.parametrize("short", [25 * GB, 35 * GB])
def test_what_the_engines_carry_hides_how_long_staging_waits(short: float) -> None:
    # MLA and its index: 32 MiB are 27.9 MB of long rows, 0.537 ms at 52 GB/s, more than staging waits; then short rows
    # cost 0.112 ms staged and at least 0.161 ms by the engines.
    choice = measured({41984: 52 * GB, 8448: short}).choose([(41984, 61), (8448, 61)], "; so there")

    assert choice[:3] == ("pitched+staged", (True, False), 1 << 18)
    assert choice.reason.endswith(
        "beside kernels that fill the device; the engines carry long rows while short ones are staged; so there"
    )


def test_a_few_long_rows_hide_nothing() -> None:
    # A hundredth of the bytes: staging the rest waits, and the engines are nearly as fast
    choice = measured({65536: 50 * GB, 8192: 40 * GB}).choose([(65536, 1), (8192, 800)])

    assert choice[:2] == ("pitched", (True, True))


@pytest.mark.parametrize(
    ("runs", "forced", "way"),
    [
        ([(64, 1)], "pitched", "whole"),
        ([(64, 2)], "pitched", "pitched"),
        ([(64, 1), (64, 1)], "pitched", "pitched"),
        ([(64, 1)], "staged", "staged"),
        ([(64, 1)], "direct", "direct"),
    ],
)
def test_a_forced_way(monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, int]], forced: str, way: str) -> None:
    monkeypatch.setenv("CACHECORE_CUDA_SWAP", forced)

    choice = choose(CPU, "out", runs)

    assert choice == (way, (forced == "pitched",) * len(runs), 0, f"forced by CACHECORE_CUDA_SWAP={forced}")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), AllocationError("no room; ulimit -l")])
def test_without_room_to_measure_the_engines_alone_are_taken(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Calibration:
        raise error

    monkeypatch.delenv("CACHECORE_CUDA_SWAP", raising=False)
    monkeypatch.setattr(calibration, "calibration", full)

    assert choose(CPU, "in", [(64, 1), (64, 1)])[:3] == ("pitched", (True, True), 0)
    assert choose(CPU, "in", [(64, 1)]).reason.startswith("nothing could be measured (no room")


@pytest.mark.parametrize("out", [False, True])
@given(run=st.integers(1, 64 << 20), one_run=st.booleans(), payload=st.sampled_from([1 << 16, 1 << 20, 32 << 20]))
def test_a_measurement_stays_within_its_memory(run: int, one_run: bool, payload: int, out: bool) -> None:
    run = min(measuring.measured_length(run, one_run=one_run), payload)

    segments, num_blocks = measuring.spread(run, 1 if one_run else 64, payload, out=out)

    last = num_blocks - 1
    host, device = ("dst", "src") if out else ("src", "dst")
    for one in segments:
        ends = {
            side: getattr(one, f"{side}_start") + last * getattr(one, f"{side}_block_stride") + one.nbytes
            for side in (host, device)
        }
        assert ends[host] <= PAYLOAD
        assert ends[device] <= measuring._ROWS * measuring._PITCH
    assert num_blocks * len(segments) * run <= payload
    assert num_blocks <= 4096


def test_blocks_without_bytes_need_no_measurement() -> None:
    assert choose(CPU, "out", []) == ("pitched", (), 0, "blocks without bytes")


class CountingBench:
    """A bench that answers at once and remembers what it was asked."""

    asked: list[object]

    def __init__(self, device: torch.device, direction: str) -> None:
        self.asked.append(direction)

    def staged(self) -> float:
        self.asked.append("staged")
        return 40e9

    def staged_beside(self) -> float:
        return 24e9

    def direct_reach(self) -> int:
        return 1 << 18

    def close(self) -> None:
        self.asked.append("closed")

    def pitched(self, run: int) -> float:
        self.asked.append(run)
        return 30e9

    def whole(self, run: int) -> float:
        self.asked.append(run)
        return 50e9


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was measured, with an empty cache of measurements."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration, "_known", {})
    monkeypatch.setattr(calibration, "_device_key", lambda device: "a GPU")
    monkeypatch.setattr(CountingBench, "asked", [], raising=False)
    monkeypatch.setattr(calibration, "Bench", CountingBench)
    return CountingBench.asked


def test_only_what_is_missing_is_measured(asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    for runs in ([(8448, 1), (4096, 1)], [(4096, 2)], [(1 << 20, 1)]):
        calibration.calibration(CPU, "out", runs)

    assert asked == ["out", "staged", 4096, 8448, "closed", "out", 1 << 20, "closed"]
    asked.clear()
    monkeypatch.setattr(calibration, "_known", {})  # another process
    again = calibration.calibration(CPU, "out", [(4096, 2)])
    assert asked == []
    assert again == Calibration(40e9, 24e9, {4096: 30e9, 8448: 30e9}, {1 << 20: 50e9}, 1 << 18)
    calibration.calibration(CPU, "in", [(4096, 2)])
    assert asked == ["in", "staged", 4096, "closed"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.pop("whole"),
        lambda kept: kept.pop("staged_beside"),
        lambda kept: kept.update(staged=0.0),
        lambda kept: kept.update(staged="fast"),
        lambda kept: kept.update(pieces={}),
        lambda kept: kept.update(direct_nbytes=None),
        lambda kept: kept["pitched"].update({"4096": float("nan")}),
        lambda kept: kept["pitched"].update({"long": 1e9}),
        lambda kept: kept.update(pitched=[]),
    ],
)
def test_damaged_measurements_are_made_again(asked: list[object], monkeypatch: pytest.MonkeyPatch, damage) -> None:  # type: ignore[no-untyped-def]
    calibration.calibration(CPU, "out", [(4096, 2)])
    kept = json.loads(calibration.calibration_file().read_text())
    damage(kept["a GPU"]["out"])
    calibration.calibration_file().write_text(json.dumps(kept))
    monkeypatch.setattr(calibration, "_known", {})
    asked.clear()

    calibration.calibration(CPU, "out", [(4096, 2)])

    assert asked == ["out", "staged", 4096, "closed"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a GPU": 7}', "[" * 100_000])
def test_a_file_that_is_none_of_ours_is_replaced(asked: list[object], text: str) -> None:
    calibration.calibration_file().parent.mkdir(parents=True)
    calibration.calibration_file().write_text(text)

    calibration.calibration(CPU, "out", [(4096, 2)])

    assert json.loads(calibration.calibration_file().read_text())["a GPU"]["out"]["pitched"] == {"4096": 30e9}


def test_nothing_is_left_behind_where_the_file_cannot_be_replaced(asked: list[object]) -> None:
    calibration.calibration_file().mkdir(parents=True)

    calibration.calibration(CPU, "out", [(4096, 2)])

    assert list(calibration.calibration_file().parent.iterdir()) == [calibration.calibration_file()]


def test_without_any_home_it_is_measured(asked: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)

    assert calibration.calibration(CPU, "out", [(4096, 2)]).pitched == {4096: 30e9}


def test_a_home_that_cannot_be_written_costs_a_measurement_only(
    asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")

    assert calibration.calibration(CPU, "out", [(4096, 2)]).pitched == {4096: 30e9}


def test_what_another_method_measured_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="a GPU", uuid="0-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(calibration, "driver_version", lambda: 13000)
    monkeypatch.setattr(calibration, "why_each", lambda: None)
    now = calibration._device_key(CPU)
    monkeypatch.setattr(calibration, "_METHOD", calibration._METHOD + 1)

    assert calibration._device_key(CPU) != now
