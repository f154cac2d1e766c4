"""Which way a swap takes: decided by what was measured on the device at hand, once, and kept.

A threshold tuned on one machine is wrong on the next, so there is none here. Staging counts as what it
reaches beside kernels that fill the device, since swaps run beside a model and its kernels wait for
those; the copy engines do not.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import torch

from cachecore import AllocationError, PlanError
from cachecore_cuda_triton.measuring import Bench, measured_length

__all__ = ["WAYS", "Calibration", "Choice", "calibration", "calibration_file", "choose", "is_one_run"]

WAYS = ("staged", "pitched", "direct")
"""What can be forced. A block that is one run goes *whole* where others go pitched: there are no rows to space."""

Runs = Sequence[tuple[int, int]]
"""(bytes of a run, runs) of a block."""


class Choice(NamedTuple):
    """The ``way`` blocks go, whether each kind of run goes ``by_engines`` alone, and why.

    Payloads up to ``direct_nbytes`` go by a kernel of few programs instead.
    """

    way: str
    by_engines: tuple[bool, ...]
    direct_nbytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """One direction, in bytes a second: staging, and the engines by the length of a row or of a whole block."""

    staged: float
    staged_beside: float
    pitched: Mapping[int, float]
    whole: Mapping[int, float]
    direct_rows_nbytes: int
    direct_whole_nbytes: int

    def choose(self, runs: Runs, hint: str = "") -> Choice:
        """The way for blocks made of ``runs``; ``hint`` ends the reason of rows."""
        rates, one_run = (self.whole, True) if is_one_run(runs) else (self.pitched, False)
        by_engines = tuple(
            not length or rates[measured_length(length, one_run=one_run)] >= self.staged_beside for length, _ in runs
        )
        block = sum(length * count for length, count in runs)
        seconds = sum(
            length * count / rates[measured_length(length, one_run=one_run)] for length, count in runs if length
        )
        engines = f"{block / max(1e-9, seconds) / 1e9:.1f} GB/s measured of the copy engines"
        beside = f"{self.staged_beside / 1e9:.1f} beside kernels that fill the device, which counts"
        staging = f"{self.staged / 1e9:.1f} of staging alone, {beside}"
        if one_run:
            way = "whole" if by_engines[0] else "staged"
            return Choice(way, by_engines, self.direct_whole_nbytes, f"a block is one run: {engines}, {staging}")
        ways = sorted({"pitched" if yes else "staged" for yes in by_engines} or {"pitched"})
        mixed = ", row length by row length" * (len(ways) > 1)
        told = f"rows like these: {engines}, {staging}{mixed}{hint}"
        return Choice("+".join(ways), by_engines, self.direct_rows_nbytes, told)


def is_one_run(runs: Runs) -> bool:
    """Whether a block is one run of bytes on both sides."""
    return len(runs) == 1 and runs[0][1] == 1


def choose(device: torch.device, direction: str, runs: Runs, hint: str = "") -> Choice:
    """The forced way, or what was measured best on ``device`` for blocks made of ``runs``; ``hint`` is told with rows.

    Raises
    ------
    PlanError
        When ``CACHECORE_CUDA_SWAP`` names no way.
    """
    forced = os.environ.get("CACHECORE_CUDA_SWAP")
    if forced and forced not in WAYS:
        raise PlanError(f"CACHECORE_CUDA_SWAP is {forced!r}; expected one of {', '.join(WAYS)}, or nothing")
    engines = "whole" if is_one_run(runs) else "pitched"
    if forced:
        way = engines if forced == "pitched" else forced
        return Choice(way, (forced == "pitched",) * len(runs), 0, f"forced by CACHECORE_CUDA_SWAP={forced}")
    try:
        return calibration(device, direction, runs).choose(runs, hint)
    except (torch.OutOfMemoryError, AllocationError) as error:
        why = str(error).partition("\n")[0]
        return Choice(engines, (True,) * len(runs), 0, f"nothing could be measured ({why}); the engines need no room")


_known: dict[tuple[str, str], Calibration] = {}
_measuring = Lock()


def calibration(device: torch.device, direction: str, runs: Runs) -> Calibration:
    """What was measured on this device before; what is missing for ``runs`` is measured now (less than a second)."""
    kind = "whole" if is_one_run(runs) else "pitched"
    lengths = {measured_length(length, one_run=kind == "whole") for length, _ in runs if length}
    with _measuring:
        key = _device_key(device), direction
        known = _known.get(key) or _load(*key)
        missing = lengths if known is None else lengths - set(getattr(known, kind))
        if known is None or missing:
            known = _known[key] = _measure(device, direction, known, {kind: missing})
            _save(*key, known)
        _known[key] = known
    return known


def _measure(
    device: torch.device, direction: str, known: Calibration | None, missing: Mapping[str, set[int]]
) -> Calibration:
    bench = Bench(device, direction)
    if known is None:
        rows_reach, whole_reach = bench.direct_reach()
        known = Calibration(bench.staged(), bench.staged_beside(), {}, {}, rows_reach, whole_reach)
    kinds = {"pitched": bench.pitched, "whole": bench.whole}
    found = {
        kind: {**getattr(known, kind), **{length: rate(length) for length in sorted(missing.get(kind, ()))}}
        for kind, rate in kinds.items()
    }
    alone = known.staged, known.staged_beside
    return Calibration(*alone, found["pitched"], found["whole"], known.direct_rows_nbytes, known.direct_whole_nbytes)


def calibration_file() -> Path:
    """Where measurements are kept: ``$XDG_CACHE_HOME/cachecore/cuda-triton.json``; OSError without any home."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError(f"no home: {error}") from error
    return folder / "cachecore" / "cuda-triton.json"


def _device_key(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} {properties.uuid}, CUDA {torch.version.cuda}"


def _load(key: str, direction: str) -> Calibration | None:
    try:
        kept = dict(json.loads(calibration_file().read_text())[key][direction])
        for kind in ("pitched", "whole"):
            kept[kind] = {int(length): _rate(rate) for length, rate in kept[kind].items()}
        found = Calibration(**kept)
        _rate(found.staged), _rate(found.staged_beside)
        whole = all(type(reach) is int for reach in (found.direct_rows_nbytes, found.direct_whole_nbytes))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # nothing was kept, or something unreadable: it is measured again
    return found if whole else None


def _rate(value: object) -> float:
    if not isinstance(value, float) or not 0 < value < float("inf"):
        raise ValueError(f"no rate: {value!r}")
    return value


def _save(key: str, direction: str, measured: Calibration) -> None:
    with suppress(OSError):  # a home that cannot be written costs a measurement a process
        path = calibration_file()
        try:
            kept = json.loads(path.read_text())
            ours = dict(kept.get(key) or {})
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            kept, ours = {}, {}
        kept[key] = {**ours, direction: asdict(measured)}
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(kept, file, indent=1)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
