"""The driver's side: ask every actor, solve, hand the counts back, and tell the survivors when one is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from cachecore import Agreement, AgreementError, CacheCoreError, PlanError
from cachecore.agreement import solve_reports
from cachecore.meaning import seconds, several, whole
from cachecore.report import read_report

__all__ = ["agree_on_actors"]

_TELLING = 0.25
"""Share of the limit that is kept for telling the survivors that another rank is lost."""


def agree_on_actors(actors: Sequence[Any], *, timeout_s: float = 60.0, **shared: Any) -> Agreement:
    """Agree on counts that fit every actor, and have each plan again at them.

    Every actor is a :class:`~cachecore_ray.CacheRank`, its position its rank. ``shared`` are the
    arguments of :func:`cachecore.agree` that all ranks have in common (``context_length``, ``ratio``,
    ``num_blocks``, ``model``, ...); memory is each actor's own. The ranks of one Ray node share its
    host memory.

    Returns or raises within ``timeout_s``. When it raises, every actor that is alive has been told: its
    ``cache_agreement`` raises with the same reason. One that is only slow is told when it answers again.

    Raises
    ------
    AgreementError
        Naming the actor that is dead, missing or slow (``rank``), refused its input, or was built from
        another model.
    AllocationError
        When the counts do not fit the smallest rank or node.
    """
    actors = several(actors, "actors")
    if not actors:
        raise PlanError("no actors given; expected one for each rank")
    for rank, actor in enumerate(actors):
        if not all(hasattr(actor, name) for name in ("report_caches", "take_agreement", "lose_agreement")):
            raise TypeError(
                f"actor {rank} must be the handle of an actor whose class inherits CacheRank, not {actor!r}"
            )
    timeout_s = seconds(timeout_s, "timeout_s")
    inputs = json.dumps(shared, default=_plain)
    started = time.monotonic()
    deadline = started + timeout_s * (1 - _TELLING)
    try:
        reports = _ask(actors, lambda rank, actor: actor.report_caches.remote(rank, inputs), deadline, timeout_s)
        agreement = solve_reports([read_report(text, rank) for rank, text in enumerate(reports)], len(actors))
        agreed = json.dumps(asdict(agreement))
        _ask(actors, lambda rank, actor: actor.take_agreement.remote(rank, agreed), deadline, timeout_s)
    except CacheCoreError as error:
        _tell(actors, str(error), getattr(error, "rank", None), started + timeout_s)
        raise
    return agreement


def _ask(actors: Sequence[Any], call: Callable[[int, Any], Any], deadline: float, timeout_s: float) -> list[str]:
    """Every actor's answer in rank order; raises for the first that fails, without waiting for the others."""
    ranks = {call(rank, actor): rank for rank, actor in enumerate(actors)}
    waiting = list(ranks)
    answers: dict[int, str] = {}
    while waiting:
        ready, waiting = ray.wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            slow = sorted(ranks[reference] for reference in waiting)
            told = f"rank {', '.join(map(str, slow))} did not answer in time (limit {timeout_s:g} s)"
            raise AgreementError(f"{told}; see the log of that actor", rank=slow[0], missing=slow)
        for reference in ready:
            answers[ranks[reference]] = _answer(reference, ranks[reference], deadline)
    return [answers[rank] for rank in range(len(actors))]


def _answer(reference: Any, rank: int, deadline: float) -> str:
    try:
        return str(ray.get(reference, timeout=max(1.0, deadline - time.monotonic())))
    except RayTaskError as error:
        told = f"rank {rank} failed: {type(error.cause).__name__}: {error.cause}"
        raise AgreementError(f"{told}; see the log of that actor", rank=rank) from error
    except GetTimeoutError as error:
        raise AgreementError(f"the answer of rank {rank} is on a node that does not send it", rank=rank) from error
    except RayActorError as error:
        raise AgreementError(f"rank {rank} is gone: {_first_line(error)}", rank=rank, missing=[rank]) from error
    except RayError as error:
        raise AgreementError(f"rank {rank} cannot be asked: {_first_line(error)}", rank=rank) from error


def _tell(actors: Sequence[Any], reason: str, lost: int | None, deadline: float) -> None:
    """Tell all but the lost one and wait for the survivors; the lost one hears it if it is only slow."""
    told = [actor.lose_agreement.remote(reason) for actor in actors]
    survivors = [reference for rank, reference in enumerate(told) if rank != lost]
    if survivors:
        ray.wait(survivors, num_returns=len(survivors), timeout=max(0.0, deadline - time.monotonic()))


def _plain(value: Any) -> int:
    """Integers that are not Python's, as numpy's; anything else does not travel to the actors."""
    return whole(value, "an argument for all ranks (or a part of it)")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
