"""What one rank tells the others to agree on counts: integers, names and digests, never a plan."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from cachecore.budget import Plans, budget_nbytes, given_counts, holding_of, named_sets, rank_memory, sequences
from cachecore.errors import AgreementError, PlanError
from cachecore.holding import UNBOUNDED, Holding
from cachecore.meaning import not_negative, several
from cachecore.schema import CacheTensorSpec
from cachecore.solving import RankMemory

__all__ = ["REPORT_VERSION", "check_alike", "rank_report", "read_report"]

REPORT_VERSION = 1
"""Version of the report's JSON. Ranks that speak different ones do not agree."""

_FIELDS = frozenset(
    {
        "version",
        "model",
        "node",
        "context_length",
        "in_flight_tokens",
        "concurrency",
        "given",
        "budget",
        "groups",
        "host",
        "holdings",
        "policies",
        "tensors",
    }
)

Counts = Mapping[str, int] | int | None


def rank_report(
    plans: Plans,
    *,
    memory_nbytes: int,
    ratio: float = 1.0,
    reserve_nbytes: int = 0,
    context_length: int | None = None,
    in_flight_tokens: int = 0,
    concurrency: int | None = None,
    num_blocks: Counts = None,
    host_memory_nbytes: int | None = None,
    host_num_blocks: Counts = None,
    host_concurrency: int | None = None,
    node: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """One rank's report, as plain data. The arguments are those of :func:`cachecore.agree`.

    Groups that this rank holds no layer of may be named in ``num_blocks``: all ranks are given the same.
    """
    named = named_sets(plans)
    rank = rank_memory(named, budget_nbytes(memory_nbytes, ratio, reserve_nbytes))
    length, number = sequences(context_length, concurrency)
    if host_memory_nbytes is None and (host_num_blocks, host_concurrency) != (None, None):
        raise PlanError("host_num_blocks and host_concurrency are checked against host_memory_nbytes; give it too")
    host = None
    if host_memory_nbytes is not None:
        memory = rank_memory(named, not_negative(host_memory_nbytes, "host_memory_nbytes"), host=True)
        wanted = sequences(length, host_concurrency, what="host_concurrency", host=True)[1]
        host = {**_costs(memory), "given": _given(plans, host_num_blocks, "host_num_blocks"), "concurrency": wanted}
    for name, value in (("node", node), ("model", model)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} must be a string, not {value!r}")
    return {
        "version": REPORT_VERSION,
        "model": model,
        "node": socket.gethostname() if node is None else node,
        "context_length": length,
        "in_flight_tokens": not_negative(in_flight_tokens, "in_flight_tokens"),
        "concurrency": number,
        "given": _given(plans, num_blocks, "num_blocks"),
        **_costs(rank),
        "host": host,
        "holdings": [
            [name, plan.name, *holding_of(plan, in_flight_tokens)] for name, one in named.items() for plan in one
        ],
        "policies": [
            [name, plan.name, f"{plan.policy} {plan.policy_version}"] for name, one in named.items() for plan in one
        ],
        "tensors": [
            [name, spec.name, _digest(spec), list(spec.row_ids), spec.shard.to_json()]
            for name, one in named.items()
            for plan in one
            for spec in plan.specs
        ],
    }


def read_report(text: str, rank: int) -> Mapping[str, Any]:
    """Read what rank ``rank`` sent."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AgreementError(f"rank {rank} sent what is no report: {error}", rank=rank) from error
    if not isinstance(report, dict):
        raise AgreementError(f"rank {rank} sent what is no report: {text[:80]!r}", rank=rank)
    return report


def check_alike(reports: Sequence[Mapping[str, Any]]) -> None:
    """Refuse reports of ranks that were given different inputs or built from different models."""
    for rank, report in enumerate(several(reports, "reports")):
        if not isinstance(report, Mapping):
            raise TypeError(f"report {rank} must be what rank_report() returned, not {report!r}")
        if "error" in report:
            raise AgreementError(f"rank {rank} cannot be sized: {report['error']}", rank=rank)
        if report.get("version") != REPORT_VERSION:
            raise AgreementError(
                f"rank {rank} reports in version {report.get('version')!r}, this one in {REPORT_VERSION}; "
                "install one release of cachecore-kv on all ranks",
                rank=rank,
            )
        if set(report) != _FIELDS:
            raise AgreementError(
                f"rank {rank} sent a damaged report: it lacks {sorted(_FIELDS - set(report))} and has unknown "
                f"{sorted(set(report) - _FIELDS)}; send what rank_report() returned",
                rank=rank,
            )
    for key in ("model", "context_length", "in_flight_tokens", "concurrency"):
        _check_same(reports, key, [report[key] for report in reports])
    _check_same(reports, "num_blocks", [report["given"] for report in reports])
    _check_same(reports, "host_memory_nbytes", [report["host"] is not None for report in reports])
    for what, key in (("host_num_blocks", "given"), ("host_concurrency", "concurrency")):
        _check_same(reports, what, [(report["host"] or {}).get(key) for report in reports])
    _check_groups(reports)
    _check_tensors(reports)


def _check_same(reports: Sequence[Mapping[str, Any]], what: str, values: Sequence[object]) -> None:
    for rank, value in enumerate(values):
        if value != values[0]:
            raise AgreementError(
                f"rank {rank} has {what}={_shown(value)}, but rank 0 has {_shown(values[0])}; start all ranks with the "
                "same",
                rank=rank,
            )


def _check_groups(reports: Sequence[Mapping[str, Any]]) -> None:
    """A group is one thing on all ranks; another model on another rank may keep more of it, in the same unit."""
    units: dict[str, tuple[int, Holding]] = {}
    holdings: dict[tuple[str, str], tuple[int, Holding]] = {}
    policies: dict[tuple[str, str], tuple[int, str]] = {}
    for rank, report in enumerate(reports):
        for model, group, *listed in report["holdings"]:
            mine = Holding(*listed)
            first, other = holdings.setdefault((model, group), (rank, mine))
            if other == mine:
                first, other = units.setdefault(group, (rank, mine))
                if other.unit_tokens == mine.unit_tokens:
                    continue
            raise AgreementError(
                f"a sequence holds {_told(mine)} of group {group!r} on rank {rank}, but {_told(other)} on rank "
                f"{first}; use one geometry and window on all ranks",
                rank=rank,
            )
        for model, group, policy in report["policies"]:
            first, planned = policies.setdefault((model, group), (rank, policy))
            if planned != policy:
                raise AgreementError(
                    f"group {group!r} was planned by policy {policy} on rank {rank}, but by {planned} on rank {first}; "
                    "install the same backend release on all ranks",
                    rank=rank,
                )


def _check_tensors(reports: Sequence[Mapping[str, Any]]) -> None:
    """A layer that two ranks hold must mean the same on both, and its ranks must hold all of its heads."""
    known: dict[tuple[str, str, int], tuple[int, str]] = {}
    heads: dict[tuple[str, str, int], tuple[int, set[int]]] = {}
    for rank, report in enumerate(reports):
        for model, name, digest, row_ids, shard in report["tensors"]:
            for key in ((model, name, row_id) for row_id in row_ids):
                first, other = known.setdefault(key, (rank, digest))
                if other != digest:
                    raise AgreementError(
                        f"ranks {first} and {rank} disagree on layer {key[2]} of cache {name!r}; they were built from "
                        "different models or geometries",
                        rank=rank,
                        layer=key[2],
                        cache=name,
                    )
                if shard is not None:
                    held = heads.setdefault(key, (shard["total"], set()))[1]
                    held.update(range(shard["first"], shard["first"] + shard["count"]))
    for (_, name, layer), (total, held) in heads.items():
        if len(held) != total:
            raise AgreementError(
                f"no rank holds {total - len(held)} of the {total} heads of layer {layer} of cache {name!r}; "
                "plan every rank with its own tp_rank, and let all of them agree",
                layer=layer,
                cache=name,
            )


def _shown(value: object) -> str:
    """A value of the report for people: counts as ``full: 3``, no dict."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {count}" for name, count in value.items()) or "none"
    return repr(value)


def _told(holding: Holding) -> str:
    if holding.unit_tokens == UNBOUNDED:
        return "one slot"
    most = "" if holding.most_units is None else f", at most {holding.most_units},"
    return f"blocks of {holding.unit_tokens} tokens{most}"


def _given(plans: Plans, counts: Counts, what: str) -> dict[str, int]:
    if not isinstance(counts, Mapping):
        return given_counts(plans, counts, what)
    for name in counts:
        if not isinstance(name, str):
            raise TypeError(f"{what} names group {name!r}; expected a string")
    return {name: not_negative(counts[name], f"{what} of group {name!r}") for name in sorted(counts)}


def _costs(rank: RankMemory) -> dict[str, Any]:
    return {"budget": rank.budget_nbytes, "groups": {name: list(cost) for name, cost in rank.groups.items()}}


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
