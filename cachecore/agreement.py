"""One count a group for all ranks: every rank reports numbers, all solve the same sum.

Each rank builds and keeps its own plans; plans never travel. What travels is a report of integers:
what a unit of each group costs the rank, its budget, and a digest of every tensor, so that ranks
that were built from different models are told apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

from cachecore.errors import AgreementError, AllocationError, CacheCoreError
from cachecore.schema import CacheTensorSpec
from cachecore.sizing import Plans, as_sets, budget_nbytes, check_fit, rank_memory, request_demand
from cachecore.solving import GroupBytes, RankMemory, rank_nbytes, solve_counts

__all__ = ["Agreement", "Communicator", "agree", "rank_report", "solve_reports"]

_REPORT_VERSION = 1


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
    """What all ranks agreed on. ``spare_nbytes`` is each rank's budget that stays unused."""

    counts: Mapping[str, int]
    spare_nbytes: tuple[int, ...]


def agree(
    communicator: Communicator,
    plans: Plans,
    *,
    memory_nbytes: int,
    ratio: float = 1.0,
    reserve_nbytes: int = 0,
    context_length: int | None = None,
    in_flight_tokens: int = 0,
    timeout_s: float = 60.0,
) -> Agreement:
    """Agree with all ranks on counts that fit every one of them, and check them on this one.

    Pipeline stages may hold different layers, tensor-parallel ranks different memory. An input that
    one rank refuses is refused on all.

    Raises
    ------
    AgreementError
        When a rank is missing, late or dead, refused its own input, or disagrees on the model.
    AllocationError
        When not one unit of each group fits the smallest rank.
    """
    try:
        report = rank_report(
            plans,
            budget=budget_nbytes(memory_nbytes, ratio, reserve_nbytes),
            context_length=context_length,
            in_flight_tokens=in_flight_tokens,
        )
    except CacheCoreError as error:
        communicator.all_gather(json.dumps({"error": f"{type(error).__name__}: {error}"}), timeout_s)
        raise
    texts = communicator.all_gather(json.dumps(report), timeout_s)
    agreement = solve_reports([_read(text, rank) for rank, text in enumerate(texts)], communicator.world_size)
    mine = {name: agreement.counts[name] for name in report["groups"]}
    check_fit(plans, mine, report["budget"], f"rank {communicator.rank}", in_flight_tokens=in_flight_tokens)
    return agreement


def rank_report(
    plans: Plans, *, budget: int, context_length: int | None = None, in_flight_tokens: int = 0
) -> dict[str, Any]:
    """What one rank tells the others: integers and digests."""
    sets = as_sets(plans)
    rank = rank_memory(sets, budget)
    demand = request_demand(sets, context_length, in_flight_tokens)
    tensors: list[list[Any]] = [
        [number, spec.name, _digest(spec), list(spec.row_ids)]
        for number, one in enumerate(sets)
        for plan in one
        for spec in plan.specs
    ]
    policies = sorted({f"{plan.policy} {plan.policy_version}" for one in sets for plan in one})
    return {
        "version": _REPORT_VERSION,
        "policies": policies,
        "budget": budget,
        "groups": {name: [cost.unit_nbytes, cost.fixed_nbytes, demand[name]] for name, cost in rank.groups.items()},
        "tensors": tensors,
    }


def solve_reports(reports: Sequence[Mapping[str, Any]], world_size: int) -> Agreement:
    """The counts that every rank computes alike from all reports, in any order of ranks."""
    if len(reports) != world_size:
        raise AgreementError(f"{len(reports)} ranks reported, but there are {world_size}; every rank reports once")
    for rank, report in enumerate(reports):
        if "error" in report:
            raise AgreementError(f"rank {rank} cannot be sized: {report['error']}", rank=rank)
        if report.get("version") != _REPORT_VERSION:
            raise AgreementError(
                f"rank {rank} reports in version {report.get('version')!r}, this one in {_REPORT_VERSION}; "
                "install one release of cachecore-kv on all ranks",
                rank=rank,
            )
        if report["policies"] != reports[0]["policies"]:
            raise AgreementError(
                f"rank {rank} was planned by policies {report['policies']}, rank 0 by {reports[0]['policies']}; "
                "install the same backend release on all ranks",
                rank=rank,
            )
    _check_tensors(reports)
    ranks = [
        RankMemory(
            {name: GroupBytes(unit, fixed) for name, (unit, fixed, _) in report["groups"].items()}, report["budget"]
        )
        for report in reports
    ]
    demand = _common_demand(reports)
    counts = solve_counts(ranks, demand)
    if counts is None:
        one = dict.fromkeys(demand, 1)
        tight = max(range(len(ranks)), key=lambda rank: rank_nbytes(ranks[rank], one) - ranks[rank].budget_nbytes)
        needed = rank_nbytes(ranks[tight], one)
        raise AllocationError(
            f"rank {tight} needs {needed} bytes for one unit of each group ({', '.join(demand)}), but has "
            f"{ranks[tight].budget_nbytes}; no sequence fits. Give that rank more memory or fewer layers",
            rank=tight,
            needed_nbytes=needed,
            free_nbytes=ranks[tight].budget_nbytes,
            longest_sequence=0,
        )
    return Agreement(counts, tuple(rank.budget_nbytes - rank_nbytes(rank, counts) for rank in ranks))


def _common_demand(reports: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    demand: dict[str, tuple[int, int]] = {}
    for rank, report in enumerate(reports):
        for name, (_, _, wanted) in report["groups"].items():
            first, other = demand.setdefault(name, (rank, wanted))
            if other != wanted:
                raise AgreementError(
                    f"a sequence takes {wanted} units of group {name!r} on rank {rank}, but {other} on rank {first}; "
                    "use one geometry, window and context_length on all ranks",
                    rank=rank,
                )
    return {name: demand[name][1] for name in sorted(demand)}


def _check_tensors(reports: Sequence[Mapping[str, Any]]) -> None:
    """A layer that two ranks hold must mean the same on both; its share of the heads may differ."""
    known: dict[tuple[int, str, int], tuple[int, str]] = {}
    for rank, report in enumerate(reports):
        for number, name, digest, row_ids in report["tensors"]:
            for row_id in row_ids:
                first, other = known.setdefault((number, name, row_id), (rank, digest))
                if other != digest:
                    raise AgreementError(
                        f"ranks {first} and {rank} disagree on layer {row_id} of cache {name!r}; they were built from "
                        "different models or geometries",
                        rank=rank,
                        layer=row_id,
                        cache=name,
                    )


def _digest(spec: CacheTensorSpec) -> str:
    """A layer's spec without what differs between the ranks that share it: its part of the heads."""
    described = spec.to_json()
    for key in ("row_ids", "consumer_rows", "shard"):
        del described[key]
    described["total_heads"] = spec.shard.total
    described["shape"] = [
        "heads" if axis == "head" and not spec.shard.replicated else extent
        for axis, extent in zip(spec.axes, spec.shape, strict=True)
    ]
    return blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=8).hexdigest()


def _read(text: str, rank: int) -> Mapping[str, Any]:
    try:
        report = json.loads(text)
    except ValueError as error:
        raise AgreementError(f"rank {rank} sent what is no report: {error}", rank=rank) from error
    if not isinstance(report, dict):
        raise AgreementError(f"rank {rank} sent what is no report: {text[:80]!r}", rank=rank)
    return report
