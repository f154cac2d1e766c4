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
from cachecore.errors import AgreementError, PlanError
from cachecore.holding import Holding
from cachecore.meaning import positive, seconds, several
from cachecore.report import check_alike, rank_report, read_report
from cachecore.sizing import check_fit
from cachecore.solving import GroupBytes, RankMemory, joined
from cachecore.tier import Wanted, solve_tier

__all__ = ["Agreement", "Communicator", "agree", "confirm", "solve_reports"]


_LIMIT_S = 60.0


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

    ``spare_nbytes`` is each rank's budget that stays unused, ``padding_nbytes`` what it takes for no
    payload. The longest single sequence that fits has ``longest_sequence`` tokens
    (:data:`cachecore.sizing.UNBOUNDED` where windows bound all groups), and ``num_requests`` sequences of
    the context length fit at once (None: no length was given). ``host_...`` is the same of the host tier,
    bytes by node (None: no host memory was given).
    """

    counts: Mapping[str, int]
    spare_nbytes: tuple[int, ...]
    padding_nbytes: tuple[int, ...]
    longest_sequence: int
    num_requests: int | None = None
    host_counts: Mapping[str, int] | None = None
    host_spare_nbytes: Mapping[str, int] | None = None
    host_padding_nbytes: Mapping[str, int] | None = None
    host_longest_sequence: int | None = None
    host_num_requests: int | None = None

    def __post_init__(self) -> None:
        for name in ("spare_nbytes", "padding_nbytes"):  # lists, where they travelled
            object.__setattr__(self, name, several(getattr(self, name), name))

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
    host_concurrency: int | None = None,
    node: str | None = None,
    model: str | None = None,
    timeout_s: float = _LIMIT_S,
) -> Agreement:
    """Agree with all ranks on counts that fit every one of them, and check them on this one.

    Pipeline stages may hold different layers, tensor-parallel ranks different memory. The arguments
    up to ``num_blocks`` are those of :func:`cachecore.sizing.solve`. ``host_memory_nbytes`` is what
    all ranks of this ``node`` (the host name, if not given) may take of its memory together; of
    ``context_length`` tokens ``host_concurrency`` sequences must fit there, if given.
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
    _check_communicator(communicator)
    limit_s = _LIMIT_S
    try:
        limit_s = seconds(timeout_s, "timeout_s")
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
            host_concurrency=host_concurrency,
            node=node,
            model=model,
        )
    except Exception as error:  # whatever it is, the other ranks must hear of it
        communicator.all_gather(json.dumps({"error": f"{type(error).__name__}: {error}"}), limit_s)
        raise
    texts = communicator.all_gather(json.dumps(report), limit_s)
    agreement = solve_reports([read_report(text, rank) for rank, text in enumerate(texts)], communicator.world_size)
    mine = agreement.counts_of(plans)
    check_fit(plans, mine, report["budget"], f"rank {communicator.rank}", in_flight_tokens=in_flight_tokens)
    return agreement


def confirm(communicator: Communicator, error: BaseException | None = None, *, timeout_s: float = _LIMIT_S) -> None:
    """Tell all ranks whether this one opened its engine; raise on all of them when one did not.

    Call it on every rank after opening, with the error where there was one, so that no rank serves
    while another has no memory.
    """
    _check_communicator(communicator)
    if error is not None and not isinstance(error, BaseException):
        raise TypeError(f"error must be the exception that opening raised, or None, not {error!r}")
    told = None if error is None else f"{type(error).__name__}: {error}"
    answers = [json.loads(text) for text in communicator.all_gather(json.dumps(told), seconds(timeout_s, "timeout_s"))]
    for rank, answer in enumerate(answers):
        if answer is not None:
            raise AgreementError(f"rank {rank} could not open its engine: {answer}", rank=rank) from error


def solve_reports(reports: Sequence[Mapping[str, Any]], world_size: int) -> Agreement:
    """The counts that every rank computes alike from all reports, in any order of ranks."""
    reports = several(reports, "reports")
    if not reports:
        raise PlanError("no reports given; expected one of every rank")
    if len(reports) != positive(world_size, "world_size"):
        raise AgreementError(f"{len(reports)} ranks reported, but there are {world_size}; every rank reports once")
    check_alike(reports)
    length = reports[0]["context_length"]
    holdings: dict[str, Holding] = {}
    listed_by_name = sorted((entry for report in reports for entry in report["holdings"]), key=lambda entry: entry[1])
    for _, name, *listed in listed_by_name:
        mine = Holding(*listed)
        holdings[name] = holdings.get(name, mine).joined(mine)
    device = solve_tier(
        {f"rank {rank}": _memory(report) for rank, report in enumerate(reports)},
        holdings,
        Wanted(length, reports[0]["concurrency"], reports[0]["given"]),
    )
    if reports[0]["host"] is None:
        return Agreement(*device)
    nodes: dict[str, list[RankMemory]] = {}
    for report in reports:
        nodes.setdefault(report["node"], []).append(_memory(report["host"]))
    host = solve_tier(
        {f"the host of node {node!r}": joined(memories) for node, memories in nodes.items()},
        holdings,
        Wanted(length, reports[0]["host"]["concurrency"], reports[0]["host"]["given"]),
    )
    return Agreement(
        *device,
        host_counts=host.counts,
        host_spare_nbytes=dict(zip(nodes, host.spare_nbytes, strict=True)),
        host_padding_nbytes=dict(zip(nodes, host.padding_nbytes, strict=True)),
        host_longest_sequence=host.longest_sequence,
        host_num_requests=host.num_requests,
    )


def _memory(report: Mapping[str, Any]) -> RankMemory:
    return RankMemory({name: GroupBytes(*cost) for name, cost in report["groups"].items()}, report["budget"])


def _check_communicator(communicator: object) -> None:
    lacks = [name for name in ("rank", "world_size", "all_gather") if not hasattr(communicator, name)]
    if lacks:
        raise TypeError(
            f"communicator must have rank, world_size and all_gather(), not be {communicator!r} without {lacks[0]}; "
            "see Communicator"
        )
