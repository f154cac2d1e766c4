"""Running checks: one after another, each under a time limit, every failure turned into words."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from cachecore import asking
from cachecore.testing.checks import DEVICE_LEVELS, LEVELS, Trial, trials_of
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.results import FAIL, PASS, SKIP, Outcome
from cachecore.testing.subject import Subject

__all__ = ["LIMIT_S", "run_checks", "run_trial", "select_trials"]

LIMIT_S = 300.0
"""A check that has not ended by then fails; the device may hang, so the device levels end with it."""

_CORE = os.path.join(os.path.dirname(asking.__file__), "")
"""Where the core's own frames are: a wrapper there is not where a plugin is wrong."""


def select_trials(levels: Sequence[str] = ()) -> list[Trial]:
    """The trials of these levels, all of them by default, in order."""
    unknown = sorted(set(levels) - set(LEVELS))
    if unknown:
        raise ValueError(f"level {unknown[0]!r} does not exist; the levels are {', '.join(LEVELS)}")
    from cachecore.testing.levels import CHECKS  # here, so that a command line that checks nothing loads no check

    return [trial for trial in trials_of(CHECKS) if not levels or trial.check.level in levels]


def run_checks(
    subject: Subject,
    *,
    levels: Sequence[str] = (),
    limit_s: float = LIMIT_S,
    progress: Callable[[str], None] = lambda message: None,
) -> list[Outcome]:
    """Put every check of ``levels`` to ``subject``; nothing that it raises ends the run."""
    outcomes: list[Outcome] = []
    hanging: str | None = None
    for trial in select_trials(levels):
        level = trial.check.level
        if hanging is not None and level in DEVICE_LEVELS:
            outcomes.append(Outcome(level, trial.id, SKIP, f"{hanging} did not end, so the device may hang"))
            continue
        progress(trial.id)
        outcome, ended = _within(subject, trial, limit_s)
        if not ended:
            hanging = trial.id
        outcomes.append(outcome)
    return outcomes


def _within(subject: Subject, trial: Trial, limit_s: float) -> tuple[Outcome, bool]:
    """Run in a thread that is left behind when it does not end: Python cannot stop it, and it must not stop us."""
    ended: list[Outcome] = []
    thread = threading.Thread(target=lambda: ended.append(run_trial(subject, trial)), name=trial.id, daemon=True)
    thread.start()
    thread.join(limit_s)
    if ended:
        return ended[0], True
    told = f"did not end within {limit_s:g} s. Usual cause: a stream or an event that nobody signals, or a lock held"
    return Outcome(trial.check.level, trial.id, FAIL, told, limit_s), False


def run_trial(subject: Subject, trial: Trial) -> Outcome:
    """Run one trial here."""
    started = time.perf_counter()
    try:
        told = trial(subject)
        status = PASS
    except Skipped as skipped:
        told, status = skipped.reason, SKIP
    except Fault as fault:
        told, status = str(fault), FAIL
    except BaseException as error:  # a stranger's code may raise anything; it becomes the failure
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C, which no other thread hears
        told, status = _raised(error), FAIL
    return Outcome(trial.check.level, trial.id, status, told, time.perf_counter() - started)


def _raised(error: BaseException) -> str:
    frame = _where(error)
    where = f", raised in {frame.name}() at {frame.filename}:{frame.lineno}" if frame is not None else ""
    return f"unexpected {asking.told(error)}{where}"


def _where(error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame that is not cachecore's, of the error or of what it was raised from; else the innermost."""
    first: traceback.FrameSummary | None = None
    found: traceback.FrameSummary | None = None
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        outside = [frame for frame in frames if not frame.filename.startswith(_CORE)]
        first = first or (frames[-1] if frames else None)
        found = outside[-1] if outside else found
        if not frames or frames[-1] is found:
            break  # it was not raised by a wrapper of the core's
        cause = cause.__cause__
    return found or first
