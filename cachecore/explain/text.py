"""An explanation as text: equally spaced rows are told as one line, reasons are wrapped to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

from cachecore.nbytes import both_nbytes

Data = Mapping[str, Any]


_MOST_RUNS = 8
"""Gaps that are alike but not equally spaced are told in so many lines; JSON has each."""


def render(data: Data, width: int) -> str:
    """Write what :func:`cachecore.explain.explain_plan` returned."""
    groups = data["groups"]
    lines = [f"plan for device {data['device']} by backend {data['backend']}, {_many(len(groups), 'group')}"]
    for group in groups:
        lines += ["", *_group(group, width)]
    return "\n".join(lines) + "\n"


def _group(group: Data, width: int) -> Iterator[str]:
    policy = group["policy"]
    yield f"{group['kind']} group {group['group']}"
    if "geometry" in group:
        window = group["window"]
        yield from _field("geometry", group["geometry"]["why"], width)
        told = "none" if window is None else f"{window} tokens"
        yield from _field("window", f"{told}: {group['window_why']}", width)
    yield from _field("policy", f"{policy['name']} version {policy['version']}: {policy['why']}", width)
    for tier in ("device", "host"):
        yield from _field(tier, _sizes(group, group[tier]), width)
    yield ""
    yield f"  {_many(len(group['caches']), 'cache')}"
    for cache in group["caches"]:
        yield from _cache(cache, "page" if group["unit"] == "block" else group["unit"], width)
    for tier in ("device", "host"):
        yield ""
        yield f"  {tier} layout: {group[tier]['layout']}"
        yield from _paragraph(group[tier]["why"], 4, width)
        for pool in group[tier]["pools"]:
            yield from _pool(pool, group["unit"], width)


def _sizes(group: Data, tier: Data) -> str:
    unit = group["unit"]
    told = f"{both_nbytes(tier['unit_nbytes'])} a {unit}, "
    if "token_nbytes" in tier:
        told += f"{both_nbytes(tier['token_nbytes'])} a token, "
    padding = tier["padding_nbytes"]
    told += f"of it {both_nbytes(padding)} padding ({padding / tier['unit_nbytes']:.2%})" if padding else "no padding"
    if group["num_units"] is not None:
        told += f"; {_many(group['num_units'], unit)} take {both_nbytes(tier['reserved_nbytes'])}"
    return told


def _cache(cache: Data, per: str, width: int) -> Iterator[str]:
    axes = ", ".join(f"{axis} {extent}" for axis, extent in zip(cache["axes"], cache["shape"], strict=True))
    yield from _paragraph(
        f"{cache['name']}: {cache['dtype']} ({axes}), {both_nbytes(cache['page_nbytes'])} a {per}, "
        f"{_many(cache['num_rows'], 'row')} found by {cache['found_by']}",
        4,
        width,
    )
    yield from _field("rows", _row_names(cache), width, indent=6)
    yield from _field("format", f"{cache['format']}: {cache['format_why']}", width, indent=6)
    yield from _field("shard", cache["shard_why"], width, indent=6)
    if cache["tokens_per_entry"] > 1:
        yield from _field("tokens", f"one entry stands for {cache['tokens_per_entry']} tokens", width, indent=6)
    if cache["planes"]:
        planes = ", then ".join(f"{plane['name']} ({plane['token_nbytes']} B a token)" for plane in cache["planes"])
        yield from _field("planes", f"a page holds {planes}", width, indent=6)
    asked = f"alignment {cache['alignment']}"
    if cache["page_stride_multiple"] > 1:
        asked += f", page_stride_multiple {cache['page_stride_multiple']}"
    if cache["per_row_contiguous"]:
        asked += ", per_row_contiguous"
    yield from _field("asked", asked, width, indent=6)
    for tier in ("device", "host"):
        if tier == "device" or cache[tier]["placement"] not in ("block-major", cache["device"]["placement"]):
            yield from _field(tier, f"{cache[tier]['placement']}: {cache[tier]['why']}", width, indent=6)


def _row_names(cache: Data) -> str:
    ids = f"layers {_ranges(cache['row_ids'])}" if cache["found_by"] == "layer" else f"ids {_ranges(cache['row_ids'])}"
    if cache["consumer_rows"] is None or cache["consumer_rows"] == cache["row_ids"]:
        return ids
    return f"consumer rows {_ranges(cache['consumer_rows'])}, {ids}"


def _pool(pool: Data, unit: str, width: int) -> Iterator[str]:
    yield from _paragraph(
        f"pool {pool['pool']}: uint8[{pool['outer']}, entries, {pool['inner']}], "
        f"{both_nbytes(pool['unit_nbytes'])} a {unit}, holds {', '.join(pool['holds']) or 'nothing'}",
        4,
        width,
    )
    yield from _field("start", f"multiple of {pool['base_alignment']}: {pool['base_alignment_why']}", width, indent=6)
    yield from _field("entries", f"alignment {pool['alignment']}: {pool['alignment_why']}", width, indent=6)
    for _, rows in groupby(pool["rows"], key=lambda row: row["spec"]):
        for run in _runs(list(rows)):
            yield from _field("rows", _run(run), width, indent=6)
    if not pool["gaps"]:
        yield from _field("padding", "none", width, indent=6)
    for gaps in _alike(pool["gaps"]):
        runs = _runs(gaps)
        for run in runs[:_MOST_RUNS]:
            yield from _field("padding", f"{_gap_run(run)}: {run[0]['why']}", width, indent=6)
        more = [gap for run in runs[_MOST_RUNS:] for gap in run]
        if more:
            nbytes = sum(gap["nbytes"] for gap in more)
            yield from _field("padding", f"{_many(len(more), 'more gap')} like these, {nbytes:,} B", width, indent=6)


def _alike(gaps: Sequence[Data]) -> list[list[Data]]:
    """Gaps of one length, at the same outer indices and for one reason."""
    alike: dict[tuple[object, ...], list[Data]] = {}
    for gap in gaps:
        alike.setdefault((gap["first_outer"], gap["num_outer"], gap["nbytes"], gap["why"]), []).append(gap)
    return list(alike.values())


def _gap_run(run: Sequence[Data]) -> str:
    first, last = run[0], run[-1]
    end = first["offset"] + first["nbytes"]
    told = f"{_outers(first['first_outer'], first['num_outer'])}, bytes {first['offset']:,} to {end:,} "
    if len(run) == 1:
        return f"{told}({first['nbytes']:,} B)"
    step, end = run[1]["offset"] - first["offset"], last["offset"] + last["nbytes"]
    return f"{told}({first['nbytes']:,} B), each {step:,} bytes after the last, to {end:,}, {len(run):,} times"


def _run(run: Sequence[Data]) -> str:
    first, last = run[0], run[-1]
    told = f"{first['cache']} {_row_name(run)}: "
    if not first["nbytes"]:
        return f"{told}no bytes"
    told += _outers(first["outer"], last["outer"] - first["outer"] + 1)
    told += f", bytes {first['offset']:,} to {first['offset'] + first['nbytes']:,}"
    if last["offset"] != first["offset"]:
        step, end = run[1]["offset"] - first["offset"], last["offset"] + last["nbytes"]
        told += f", each {step:,} bytes after the last, to {end:,}"
    return told


def _row_name(run: Sequence[Data]) -> str:
    consumer = run[0]["consumer_row"] is not None
    kind = "consumer row" if consumer else "layer"
    ids = [row["consumer_row"] if consumer else row["row_id"] for row in run]
    return f"{kind}{'s' if len(ids) > 1 else ''} {_ranges(ids)}"


def _runs(rows: list[Data]) -> list[list[Data]]:
    """Cut rows into runs with one step of outer index and offset."""
    runs: list[list[Data]] = []
    for row in rows:
        if runs and (len(runs[-1]) == 1 or _step(runs[-1][-2], runs[-1][-1]) == _step(runs[-1][-1], row)):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _step(one: Data, two: Data) -> tuple[int, int]:
    return two.get("outer", 0) - one.get("outer", 0), two["offset"] - one["offset"]


def _outers(first: int, count: int) -> str:
    return f"outer {first}" if count == 1 else f"outer {first} to {first + count - 1}"


def _ranges(ids: Sequence[int]) -> str:
    """Write ``[0, 1, 2, 5]`` as ``0-2, 5``."""
    runs: list[list[int]] = []
    for one in ids:
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _many(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def _field(name: str, text: str, width: int, *, indent: int = 2) -> list[str]:
    hang = indent + 10
    lines = wrap(text, max(20, width - hang)) or [""]
    return [f"{'':{indent}}{name:<10}{lines[0]}", *(f"{'':{hang}}{line}" for line in lines[1:])]


def _paragraph(text: str, indent: int, width: int) -> list[str]:
    first, *more = wrap(text, max(20, width - indent - 2))
    return [f"{'':{indent}}{first}", *(f"{'':{indent + 2}}{line}" for line in more)]
