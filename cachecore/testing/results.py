"""What was found: an outcome a trial, a verdict a level, and the report that a vendor sends back."""

from __future__ import annotations

import json
import platform
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import importlib_metadata

from cachecore import asking
from cachecore.backend import API_VERSION
from cachecore.testing.checks import LEVELS
from cachecore.testing.faults import Skipped
from cachecore.testing.subject import Subject
from cachecore.testing.ways import way_lines

__all__ = ["FAIL", "PASS", "SKIP", "Outcome", "level_status", "report", "text"]

PASS = "pass"
FAIL = "fail"
SKIP = "skipped"
REPORT_VERSION = 1
ANSWER_S = 30.0
"""For what the report says of the backend beside the checks, which have told by then if it hangs."""

_NUMBERS = re.compile(r"0x[0-9a-f]+|[0-9]+|'[^']*'")
"""What differs between failures that are alike: addresses, sizes, names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial's result. ``told`` is the fault, the reason why skipped, or what is worth knowing."""

    level: str
    id: str
    status: str
    told: str | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"id": self.id, "status": self.status, "told": self.told, "seconds": round(self.seconds, 4)}


def level_status(outcomes: Iterable[Outcome]) -> str:
    """Fail if one failed, skipped if all were, else pass."""
    found = {outcome.status for outcome in outcomes}
    return FAIL if FAIL in found else PASS if PASS in found else SKIP


def report(subject: Subject, outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """Everything that somebody without the hardware needs to know, as plain data."""
    levels = [
        {
            "level": level,
            "about": LEVELS[level],
            "status": level_status(mine),
            "passed": sum(outcome.status == PASS for outcome in mine),
            "failed": sum(outcome.status == FAIL for outcome in mine),
            "skipped": sum(outcome.status == SKIP for outcome in mine),
            "checks": [outcome.to_json() for outcome in mine],
        }
        for level in LEVELS
        if (mine := [outcome for outcome in outcomes if outcome.level == level])
    ]
    return {
        "format": "cachecore-conformance",
        "version": REPORT_VERSION,
        "status": level_status(outcomes),
        "backend": subject.info.name,
        "distribution": subject.plugin.distribution,
        "distribution_version": subject.plugin.version,
        "device": str(subject.device),
        "unavailable": subject.unavailable,
        "environment": _environment(subject),
        "seconds": round(seconds, 3),
        "levels": levels,
        **subject.ways.to_json(),
        "notes": subject.ways.notes(),
    }


def _environment(subject: Subject) -> dict[str, Any]:
    told: dict[str, Any] = {
        "cachecore": _version("cachecore-kv"),
        "api_version": API_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(_asked(subject)), daemon=True)
    thread.start()
    thread.join(ANSWER_S)
    return told | (answers[0] if answers else {"error": f"the backend did not answer within {ANSWER_S:g} s"})


def _asked(subject: Subject) -> dict[str, Any]:
    """What the backend says of itself, as JSON can hold it."""
    told: dict[str, Any] = {}
    try:
        backend = subject.backend
        told["policy"] = f"{backend.policy.name} {backend.policy.version}"
        asks: dict[str, Callable[[], Any]] = {
            "capabilities": lambda: dict(backend.capabilities()),
            "memory": lambda: list(backend.memory(subject.device)),
        }
        for name, ask in asks.items():
            found = ask()
            json.dumps(found, allow_nan=False)  # raises for what no report can hold
            told[name] = found
        told |= subject.adapter().about(subject.device)
    except Skipped:
        return told
    except BaseException as error:  # noqa: BLE001  # the report is written whatever the backend does; checks told why
        told["error"] = asking.told(error)
    return told


def _version(distribution: str) -> str:
    try:
        return importlib_metadata.version(distribution)
    except importlib_metadata.PackageNotFoundError:
        return "from a source tree, not installed"


def text(data: dict[str, Any], *, verbose: bool = False) -> list[str]:
    """A report for people: a line a level, whose copies ran, every failure, why something was skipped."""
    lines = [
        f"{data['backend']} ({data['distribution']} {data['distribution_version']}) on {data['device']}",
        "",
    ]
    for level in data["levels"]:
        counts = [f"{level[key]} {key}" for key in ("passed", "failed", "skipped") if level[key]]
        lines.append(f"  {level['level']:<13} {level['status']:<8} {', '.join(counts):<32} {level['about']}")
    if data["ways"]:
        lines += ["", *(f"  {line}" for line in way_lines(data["ways"]))]
    lines += [line for note in data["notes"] for line in ("", f"note: {note}")]
    checks = [one for level in data["levels"] for one in level["checks"]]
    failed = [one for one in checks if one["status"] == FAIL]
    skipped: dict[str, list[str]] = {}
    for one in checks:
        if one["status"] == SKIP:
            skipped.setdefault(one["told"], []).append(one["id"])
    alike: dict[str, list[dict[str, Any]]] = {}
    for one in failed:
        alike.setdefault(one["id"].partition("/")[0] + _NUMBERS.sub("", one["told"]), []).append(one)
    for first, *more in alike.values():
        also = f" and {len(more)} more alike, such as {more[0]['id']}" if more else ""
        lines += ["", f"FAIL {first['id']}{also}", *(f"  {line}" for line in first["told"].splitlines())]
    if skipped:
        lines.append("")
        lines += [f"skipped {_named(ids)}: {reason}" for reason, ids in skipped.items()]
    if verbose:
        lines.append("")
        lines += [
            f"{one['status']:<8} {one['id']}: {one['told']}" for one in checks if one["status"] == PASS and one["told"]
        ]
    told = {status: sum(one["status"] == status for one in checks) for status in (PASS, FAIL, SKIP)}
    lines += ["", f"{told[PASS]} passed, {told[FAIL]} failed, {told[SKIP]} skipped in {data['seconds']:.1f} s"]
    return lines


def _named(ids: Sequence[str]) -> str:
    if len(ids) < 4:
        return ", ".join(ids)
    levels = sorted({name.partition("/")[0] for name in ids}, key=list(LEVELS).index)
    return f"{len(ids)} checks of {', '.join(levels)}"
