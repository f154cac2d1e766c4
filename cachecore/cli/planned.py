"""What ``cachecore plan`` says of the plans that it made: as data, and in lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachecore.cli.terminal import table
from cachecore.layout_kinds import BASE_ALIGNMENT
from cachecore.nbytes import format_nbytes
from cachecore.plan import BlockCachePlan
from cachecore.plan_set import CachePlanSet
from cachecore.policy import LayoutHints
from cachecore.sizing import UNBOUNDED, SizingAnswer

Answers = Mapping[str, SizingAnswer | None]


def planned_data(
    plans: CachePlanSet, hints: LayoutHints, answers: Answers, assumed: list[str], output: str | None
) -> dict[str, Any]:
    """The answer of ``--json``; ``assumed`` says what was taken for granted."""
    data: dict[str, Any] = {
        "planned_for": plans.device,
        "backend": plans.backend,
        "hints": {"one_run_per_block": hints.one_run_per_block, "base_alignment": hints.base_alignment},
        "groups": [
            {
                "group": plan.name,
                "logical_block_size": plan.geometry.logical_block_size,
                "kernel_block_size": plan.geometry.page_size,
                "window": plan.group.window,
                "policy": plan.policy,
                "policy_version": plan.policy_version,
                "layout": plan.layout.kind,
                "host_layout": plan.host_layout.kind,
                "block_runs": plan.layout.num_runs,
                "block_nbytes": plan.block_nbytes(),
                "host_block_nbytes": plan.block_nbytes(host=True),
            }
            for plan in plans.blocks
        ],
    }
    for tier, answer in answers.items():
        data[tier] = answer and {
            "num_blocks": dict(answer.counts),
            "needed_nbytes": answer.needed_nbytes,
            "budget_nbytes": answer.budget_nbytes,
            "longest_sequence": None if answer.longest_sequence == UNBOUNDED else answer.longest_sequence,
            "num_requests": answer.num_requests,
        }
    data["notes"] = [*assumed, *_notes(plans, hints, answers)]
    data["output"] = output
    if output is None:
        data["plan"] = plans.to_json()
    return data


def planned_lines(
    plans: CachePlanSet, hints: LayoutHints, answers: Answers, assumed: list[str], output: str | None
) -> list[str]:
    """The same, for people."""
    lines = [f"plan for device {plans.device} by backend {plans.backend}"]
    rows = [
        [
            plan.name,
            plan.specs[0].num_rows,
            plan.layout.kind,
            plan.geometry.logical_block_size,
            format_nbytes(plan.block_nbytes()),
            format_nbytes(plan.block_nbytes() / plan.geometry.logical_block_size),
        ]
        for plan in plans.blocks
    ]
    lines += table(["group", "layers", "layout", "tokens a block", "a block", "a token"], rows, right="1345")
    lines += [f"note: {note}" for note in (*assumed, *_notes(plans, hints, answers))]
    for tier, answer in answers.items():
        if answer is not None:
            lines += _sized(tier, answer)
    if output is not None:
        lines.append(f"wrote {output}; `cachecore explain {output}` tells why every byte stands where it does")
    return lines


def _notes(plans: CachePlanSet, hints: LayoutHints, answers: Answers) -> list[str]:
    """What a plan's figures do not show."""
    notes = []
    if hints.base_alignment > BASE_ALIGNMENT:
        start = format_nbytes(hints.base_alignment)
        notes.append(f"each pool takes {start} more than its blocks, so that it can start at a multiple of {start}")
    for plan in plans.blocks if hints.one_run_per_block else ():
        runs, answer = plan.layout.num_runs, answers.get("device")
        if runs > 1:
            notes.append(
                f"policy {plan.policy} does not honour one_run_per_block: a block of group {plan.name} is {runs} runs"
            )
            continue
        notes.append(f"a block of group {plan.name} is one run")
        tokens = None if answer is None else _tokens_in_32_bits(plan, answer.counts[plan.name])
        if tokens is not None:
            notes.append(
                f"kernels that count offsets in 32 bits read wrong bytes of group {plan.name} from its pool's token "
                f"{tokens:,} on: element 2**31 of a layer's view stands there. Give one_run_per_block only to kernels "
                "that count in 64 bits"
            )
    return notes


def _tokens_in_32_bits(plan: BlockCachePlan, num_blocks: int) -> int | None:
    """Tokens of the pool before element 2**31 of a row view; None where no view reaches it."""
    pages = [
        (1 << 31) * spec.desc.itemsize // plan.layout.pools[place.pool].inner
        for spec, rows in zip(plan.specs, plan.layout.slices, strict=True)
        for place in rows[:1]
        if place.nbytes
    ]
    first = min(pages, default=num_blocks * plan.pages_per_unit)
    return first * plan.geometry.page_size if first < num_blocks * plan.pages_per_unit else None


def _sized(tier: str, answer: SizingAnswer) -> list[str]:
    counts = ", ".join(f"{count:,} block{'s' * (count != 1)} of group {name}" for name, count in answer.counts.items())
    longest = f"  the longest sequence that fits: {answer.longest_sequence:,} tokens"
    if answer.longest_sequence == UNBOUNDED:
        longest = "  a sequence of any length fits"
    left = answer.budget_nbytes - answer.needed_nbytes
    lines = [
        f"{tier}: {format_nbytes(answer.budget_nbytes)} hold {counts} ({format_nbytes(left)} left)",
        longest,
    ]
    if answer.num_requests is not None:
        lines.append(f"  sequences of {answer.context_length:,} tokens that fit at once: {answer.num_requests:,}")
    return lines
