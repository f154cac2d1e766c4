"""Which way a swap takes: decided by what was measured on the device at hand, once, and kept.

A threshold tuned on one machine is wrong on the next, so there is none here. Swaps run beside a model:
what counts of staging is how long its kernels wait for kernels that fill the device. The copy engines
do not wait, and what they carry meanwhile hides the wait.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import torch

from cachecore import AllocationError, PlanError
from cachecore_cuda_triton.driver import why_each
from cachecore_cuda_triton.libcuda import driver_version
from cachecore_cuda_triton.measuring import MEASURED_NBYTES, Bench, measured_length

__all__ = ["WAYS", "Calibration", "Choice", "calibration", "calibration_file", "choose", "engines_way", "forced_way"]

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
    direct_nbytes: int

    def choose(self, runs: Runs, hint: str = "") -> Choice:
        """The way for blocks made of ``runs`` that takes the least time; ``hint`` ends the reason of rows."""
        one_run = is_one_run(runs)
        rates = self.whole if one_run else self.pitched
        own = [rates[measured_length(length, one_run=one_run)] for length, _ in runs]
        sizes = [length * count for length, count in runs]
        # Runs that are staged are the slowest for the engines: none of them, some, or all.
        steps = [0.0, *sorted(set(own))]
        below = min(steps, key=lambda most: self._seconds(sizes, own, most))
        by_engines = tuple(rate > below for rate in own)
        engines = sum(sizes) / sum(size / rate for size, rate in zip(sizes, own, strict=True))
        beside = f"{self.staged_beside / 1e9:.1f} beside kernels that fill the device"
        told = f"{engines / 1e9:.1f} GB/s measured of the copy engines, {self.staged / 1e9:.1f} of staging, {beside}"
        direct = 0 if all(by_engines) else self.direct_nbytes
        if one_run:
            return Choice("whole" if by_engines[0] else "staged", by_engines, direct, f"a block is one run: {told}")
        ways = sorted({"pitched" if yes else "staged" for yes in by_engines})
        mixed = "; the engines carry long rows while short ones are staged" * (len(ways) > 1)
        return Choice("+".join(ways), by_engines, direct, f"rows like these: {told}{mixed}{hint}")

    def _seconds(self, sizes: Sequence[int], own: Sequence[float], most: float) -> float:
        """Seconds of a measurement's bytes when runs that the engines carry at ``most`` or slower are staged."""
        scale = MEASURED_NBYTES / sum(sizes)
        pairs = list(zip(sizes, own, strict=True))
        carried = scale * sum(size / rate for size, rate in pairs if rate > most)
        staged = scale * sum(size for size, rate in pairs if rate <= most)
        wait = max(0.0, MEASURED_NBYTES / self.staged_beside - MEASURED_NBYTES / self.staged)
        return carried + staged / self.staged + (max(0.0, wait - carried) if staged else 0.0)


def is_one_run(runs: Runs) -> bool:
    """Whether a block is one run of bytes on both sides."""
    return len(runs) == 1 and runs[0][1] == 1


def engines_way(runs: Runs) -> str:
    """What the copy engines' own way is called for blocks made of ``runs``."""
    return "whole" if is_one_run(runs) else "pitched"


def forced_way() -> str | None:
    """The way that ``CACHECORE_CUDA_SWAP`` forces, if any; PlanError when it names none."""
    forced = os.environ.get("CACHECORE_CUDA_SWAP")
    if forced and forced not in WAYS:
        raise PlanError(f"CACHECORE_CUDA_SWAP is {forced!r}; expected one of {', '.join(WAYS)}, or nothing")
    return forced or None


def choose(device: torch.device, direction: str, runs: Runs, hint: str = "") -> Choice:
    """The forced way, or what was measured best on ``device`` for blocks made of ``runs``; ``hint`` is told with rows.

    Raises
    ------
    PlanError
        When ``CACHECORE_CUDA_SWAP`` names no way.
    """
    forced = forced_way()
    engines = engines_way(runs)
    if not runs:
        return Choice(engines, (), 0, "blocks without bytes")
    if forced is not None:
        way = engines if forced == "pitched" else forced
        return Choice(way, (forced == "pitched",) * len(runs), 0, f"forced by CACHECORE_CUDA_SWAP={forced}")
    try:
        return calibration(device, direction, runs).choose(runs, hint)
    except (torch.OutOfMemoryError, AllocationError) as error:
        why = str(error).partition("\n")[0]
        return Choice(engines, (True,) * len(runs), 0, f"nothing could be measured ({why}); the engines need no room")


_METHOD = 2
"""Counted up when something is measured in another way, so that what was kept is measured again."""

_known: dict[tuple[str, str], Calibration] = {}
_measuring = Lock()


def calibration(device: torch.device, direction: str, runs: Runs) -> Calibration:
    """What was measured on this device before; what is missing for ``runs`` is measured now (about a second)."""
    kind = engines_way(runs)
    lengths = {measured_length(length, one_run=kind == "whole") for length, _ in runs}
    with _measuring:
        key = _device_key(device), direction
        known = _known.get(key) or _load(*key)
        missing = lengths if known is None else lengths - set(getattr(known, kind))
        if known is None or missing:
            known = _measure(device, direction, known, {kind: missing})
            _save(*key, known)
        _known[key] = known
    return known


def _measure(
    device: torch.device, direction: str, known: Calibration | None, missing: Mapping[str, set[int]]
) -> Calibration:
    bench = Bench(device, direction)
    try:
        if known is None:
            known = Calibration(bench.staged(), bench.staged_beside(), {}, {}, bench.direct_reach())
        kinds = {"pitched": bench.pitched, "whole": bench.whole}
        found = {
            kind: {**getattr(known, kind), **{length: rate(length) for length in sorted(missing.get(kind, ()))}}
            for kind, rate in kinds.items()
        }
    finally:
        bench.close()
    return replace(known, **found)


def calibration_file() -> Path:
    """Where measurements are kept: ``$XDG_CACHE_HOME/cachecore/cuda-triton.json``; OSError without any home."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise OSError(f"no home: {error}") from error
    return folder / "cachecore" / "cuda-triton.json"


def _device_key(device: torch.device) -> str:
    properties = torch.cuda.get_device_properties(device)
    each = ", piece by piece" if why_each() else ""
    versions = f"CUDA {torch.version.cuda}, driver {driver_version()}, method {_METHOD}"
    return f"{properties.name} {properties.uuid}, {versions}{each}"


def _load(key: str, direction: str) -> Calibration | None:
    try:
        kept = dict(json.loads(calibration_file().read_text())[key][direction])
        for kind in ("pitched", "whole"):
            kept[kind] = {int(length): _rate(rate) for length, rate in kept[kind].items()}
        found = Calibration(**kept)
        _rate(found.staged), _rate(found.staged_beside)
        whole = type(found.direct_nbytes) is int
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
