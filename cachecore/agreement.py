"""One count a group for all ranks: every rank reports numbers, all solve the same sum.

Each rank builds and keeps its own plans; plans never travel. What travels is a report of integers:
what a unit of each group costs the rank, its budget, and a digest of every tensor, so that ranks
that were built from different models are told apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cachecore.budget import Plans, group_names
from cachecore.errors import AgreementError, AllocationError, CacheCoreError, PlanError
from cachecore.report import check_alike, rank_report, read_report
from cachecore.sizing import UNBOUNDED, check_fit
from cachecore.solving import GroupBytes, RankMemory, joined, rank_nbytes, solve_counts

__all__ = ["Agreement", "Communicator", "agree", "confirm", "solve_reports"]


class Communicator(Protocol):
    """The ranks of one engine, as its own distributed runtime knows them."""

    rank: int
    world_size: int

    def all_gather(self, text: str, timeout_s: float) -> Sequence[str]:
        """Every rank's ``text``, in rank order, on every rank.

        Raises :class:`~cachecore.errors.AgreementError` on every rank that is alive when one is
        missing, late or dead, within ``timeout_s``.
        """


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks agreed on: ``counts`` of every group that any rank has.

    ``spare_nbytes`` is each rank's budget that stays unused. ``num_requests`` sequences of the
    context length fit at once (None: no length was given). ``host_counts`` are the host tier's
    (None: no host memory was given), and ``host_spare_nbytes`` each node's memory that stays unused.
    """

    counts: Mapping[str, int]
    spare_nbytes: tuple[int, ...]
    num_requests: int | None = None
    host_counts: Mapping[str, int] | None = None
    host_spare_nbytes: Mapping[str, int] | None = None

    def counts_of(self, plans: Plans, *, host: bool = False) -> dict[str, int]:
        """The counts of the groups that ``plans`` have: what this rank opens its engine with."""
        counts = (self.host_counts or {}) if host else self.counts
        return {name: counts.get(name, 0) for name in group_names(plans)}


def agree(
    communicator: Communicator,
    plans: Plans,
    *,
    memory_nbytes: int,
    ratio: float = 1.0,
    reserve_nbytes: int = 0,
    context_length: int | None = None,
    in_flight_tokens: int = 0,
    concurrency: int | None = None,
    num_blocks: Mapping[str, int] | int | None = None,
    host_memory_nbytes: int | None = None,
    host_num_blocks: Mapping[str, int] | int | None = None,
    node: str | None = None,
    model: str | None = None,
    timeout_s: float = 60.0,
) -> Agreement:
    """Agree with all ranks on counts that fit every one of them, and check them on this one.

    Pipeline stages may hold different layers, tensor-parallel ranks different memory. The arguments
    up to ``num_blocks`` are those of :func:`cachecore.sizing.solve`. ``host_memory_nbytes`` is what
    all ranks of this ``node`` (the host name, if not given) may take of its memory together.
    ``model`` names model and revision; where given, it must be the same on all ranks. An input that
    one rank refuses is refused on all.

    Raises
    ------
    AgreementError
        When a rank is missing, late or dead, refused its own input, or disagrees on the model.
    AllocationError
        When it does not fit the smallest rank or node: bytes needed, bytes there, the longest
        sequence that fits all.
    """
    try:
        report = rank_report(
            plans,
            memory_nbytes=memory_nbytes,
            ratio=ratio,
            reserve_nbytes=reserve_nbytes,
            context_length=context_length,
            in_flight_tokens=in_flight_tokens,
            concurrency=concurrency,
            num_blocks=num_blocks,
            host_memory_nbytes=host_memory_nbytes,
            host_num_blocks=host_num_blocks,
            node=node,
            model=model,
        )
    except (CacheCoreError, TypeError) as error:
        communicator.all_gather(json.dumps({"error": f"{type(error).__name__}: {error}"}), timeout_s)
        raise
    texts = communicator.all_gather(json.dumps(report), timeout_s)
    agreement = solve_reports([read_report(text, rank) for rank, text in enumerate(texts)], communicator.world_size)
    mine = agreement.counts_of(plans)
    check_fit(plans, mine, report["budget"], f"rank {communicator.rank}", in_flight_tokens=in_flight_tokens)
    return agreement


def confirm(communicator: Communicator, error: BaseException | None = None, *, timeout_s: float = 60.0) -> None:
    """Tell all ranks whether this one opened its engine; raise on all of them when one did not.

    Call it on every rank after opening, with the error where there was one, so that no rank serves
    while another has no memory.
    """
    told = None if error is None else f"{type(error).__name__}: {error}"
    answers = [json.loads(text) for text in communicator.all_gather(json.dumps(told), timeout_s)]
    for rank, answer in enumerate(answers):
        if answer is not None:
            raise AgreementError(f"rank {rank} could not open its engine: {answer}", rank=rank) from error


def solve_reports(reports: Sequence[Mapping[str, Any]], world_size: int) -> Agreement:
    """The counts that every rank computes alike from all reports, in any order of ranks."""
    if len(reports) != world_size:
        raise AgreementError(f"{len(reports)} ranks reported, but there are {world_size}; every rank reports once")
    check_alike(reports)
    ranks = {f"rank {rank}": _memory(report) for rank, report in enumerate(reports)}
    longest = min(report["longest"] for report in reports)
    counts = _solve(ranks, reports, reports[0]["given"], longest)
    requests = _requests(reports, counts, longest)
    spare = tuple(_spare(memory, counts) for memory in ranks.values())
    if reports[0]["host"] is None:
        return Agreement(counts, spare, requests)
    nodes: dict[str, list[RankMemory]] = {}
    for report in reports:
        nodes.setdefault(report["node"], []).append(_memory(report["host"]))
    hosts = {f"the host of node {node!r}": joined(memories) for node, memories in nodes.items()}
    host_counts = _solve(hosts, reports, reports[0]["host"]["given"], None)
    host_spare = {node: _spare(joined(memories), host_counts) for node, memories in nodes.items()}
    return Agreement(counts, spare, requests, host_counts, host_spare)


def _memory(report: Mapping[str, Any]) -> RankMemory:
    return RankMemory({name: GroupBytes(*cost) for name, cost in report["groups"].items()}, report["budget"])


def _spare(memory: RankMemory, counts: Mapping[str, int]) -> int:
    return memory.budget_nbytes - rank_nbytes(memory, counts)


def _demand(reports: Sequence[Mapping[str, Any]], given: Mapping[str, int]) -> dict[str, int]:
    """What one sequence holds of every group that is not given; the same on all ranks, as was checked."""
    names = {name for report in reports for name in report["groups"]}
    unknown = sorted(set(given) - names)
    if unknown:
        raise PlanError(f"a count is given for group {unknown[0]!r}, but the ranks have {sorted(names)}")
    left = sorted(names - set(given))
    if reports[0]["context_length"] is None:
        if len(left) > 1:
            raise PlanError(
                f"groups {', '.join(left)} share the memory by what one sequence needs of each; "
                "give context_length, the tokens of a typical sequence"
            )
        return dict.fromkeys(left, 1)
    wanted = {name: units for report in reports for name, units in report["demand"].items()}
    return {name: wanted[name] for name in left}


def _solve(
    memories: Mapping[str, RankMemory],
    reports: Sequence[Mapping[str, Any]],
    given: Mapping[str, int],
    longest: int | None,
) -> dict[str, int]:
    demand = _demand(reports, given)
    counts = solve_counts(list(memories.values()), demand, given)
    if counts is not None:
        return {name: counts[name] for name in sorted(counts)}
    asked = {**dict.fromkeys(demand, 1), **given}
    short = {where: -_spare(memory, asked) for where, memory in memories.items()}
    tight = max(short, key=lambda where: short[where])
    needed, budget = rank_nbytes(memories[tight], asked), memories[tight].budget_nbytes
    told = "" if longest is None else f"; {_of_length(reports, longest)}"
    raise AllocationError(
        f"{needed} bytes needed for {asked} on {tight}, but {budget} bytes are there{told}. "
        "Give it more memory or ask for less",
        where=tight,
        needed_nbytes=needed,
        free_nbytes=budget,
        longest_sequence=longest,
    )


def _requests(reports: Sequence[Mapping[str, Any]], counts: Mapping[str, int], longest: int) -> int | None:
    length, concurrency = reports[0]["context_length"], reports[0]["concurrency"]
    if length is None:
        return None
    requests = min(counts[name] // units for name, units in _demand(reports, {}).items())
    if concurrency is not None and requests < concurrency:
        raise AllocationError(
            f"{concurrency} sequences of {length} tokens do not fit all ranks, {requests} do; "
            f"{_of_length(reports, longest)}. Ask for less or give more memory",
            num_requests=requests,
            longest_sequence=longest,
        )
    return requests


def _of_length(reports: Sequence[Mapping[str, Any]], longest: int) -> str:
    told = "any length" if longest == UNBOUNDED else f"{longest} tokens"
    return f"{reports[0]['concurrency'] or 1} of {told} at most would fit all ranks"
