"""Cases of one run a block: planned with the hint, skipped with the reason where a policy has no such layout."""

from __future__ import annotations

import pytest
from conformance.mutant import byte_subject

from cachecore import LayoutHints, PlanError, StandardLayoutPolicy
from cachecore.layout_kinds import block_major_layout, contiguous_state_layout
from cachecore.testing import FAIL, PASS, SKIP, run_trial, select_trials
from cachecore.testing.samples import MOVED_CASES, STATE_CASES

MOVING = ("views", "copy", "swap", "states")


class Refuses(StandardLayoutPolicy):
    def select_block_layout(self, specs, geometry, hints):
        if hints.one_run_per_block:
            raise PlanError("kernels want pools of rows")
        return super().select_block_layout(specs, geometry, hints)


class Deaf(StandardLayoutPolicy):
    def select_block_layout(self, specs, geometry, hints):
        return super().select_block_layout(specs, geometry, LayoutHints(base_alignment=hints.base_alignment))

    def select_state_layout(self, specs, hints):
        return contiguous_state_layout(specs, base_alignment=hints.base_alignment)


class WholeBlocks(StandardLayoutPolicy):
    """One run a block in a vendor's own way."""

    def select_block_layout(self, specs, geometry, hints):
        if hints.one_run_per_block:
            return block_major_layout(specs, geometry.pages_per_block, base_alignment=hints.base_alignment)
        return super().select_block_layout(specs, geometry, hints)


def outcomes(policy):
    trials = [trial for trial in select_trials(MOVING) if getattr(trial.case, "one_run", False)]
    subject = byte_subject(policy=policy)
    return [(trial, run_trial(subject, trial)) for trial in trials]


@pytest.mark.parametrize("policy", [StandardLayoutPolicy, WholeBlocks])
def test_a_policy_that_honours_the_hint_passes(policy):
    found = outcomes(policy)

    assert {trial.check.level for trial, _ in found} == set(MOVING)
    assert {outcome.status for _, outcome in found} == {PASS}, [one.told for _, one in found if one.status == FAIL]


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Refuses, "the policy refuses one_run_per_block: kernels want pools of rows"),
        (Deaf, "the policy does not honour one_run_per_block: a block is several runs in layout packed"),
    ],
)
def test_a_policy_that_has_no_such_layout_has_them_skipped_with_the_reason(policy, why):
    blocks = [(trial.id, outcome) for trial, outcome in outcomes(policy) if trial.check.level != "states"]

    assert {outcome.status for _, outcome in blocks} == {SKIP}
    assert {outcome.told for id, outcome in blocks if "[kv-2-pages-one-run]" in id} == {why}


def test_slots_that_are_no_run_are_skipped_too():
    states = [outcome for trial, outcome in outcomes(Deaf) if trial.check.level == "states"]

    assert {(outcome.status, outcome.told) for outcome in states} == {
        (SKIP, "the policy does not honour one_run_per_block: a slot is several runs in layout contiguous-state")
    }


def test_the_cases_have_several_pages_caches_rows_and_a_cache_without_bytes():
    cases = [case for case in MOVED_CASES if case.one_run]
    specs = {case.name: case.specs(4) for case in cases}

    assert {case.pages_per_block for case in cases} == {2, 4}
    assert all(len(several) > 1 for several in specs.values())
    assert any(len({spec.num_rows for spec in several}) > 1 for several in specs.values())
    assert any(not spec.page_nbytes for several in specs.values() for spec in several)
    assert any(case.one_run for case in STATE_CASES)
