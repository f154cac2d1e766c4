"""The kit is tested by wrong backends: each is caught at the level that should catch it, and the fault is named."""

from __future__ import annotations

import pytest
from conformance.backend_mutants import BACKEND_MUTANTS
from conformance.copy_mutants import COPY_MUTANTS
from conformance.one_run_mutants import ONE_RUN_MUTANTS
from conformance.order_mutants import ORDER_MUTANTS
from conformance.policy_mutants import POLICY_MUTANTS
from conformance.sim import SimBackend
from conformance.sleep_mutants import SLEEP_MUTANTS
from conformance.stable_mutants import STABLE_MUTANTS

from cachecore.testing import FAIL, LEVELS, run_trial, select_trials

MUTANTS = [
    *POLICY_MUTANTS,
    *BACKEND_MUTANTS,
    *COPY_MUTANTS,
    *ONE_RUN_MUTANTS,
    *ORDER_MUTANTS,
    *SLEEP_MUTANTS,
    *STABLE_MUTANTS,
]
SLOW = ("copy/large", "copy/far-offsets", "lifetime/fifty-cycles", "memory/accounts", "memory/refused-whole", "order/")
"""Checks that only the mutants made for them go through."""


def trials_up_to(mutant):
    """The check that must catch it, with every case, after the first case of every check of the levels before."""
    order = list(LEVELS)
    seen = set()
    for trial in select_trials(order[: order.index(mutant.level) + 1]):
        if trial.check.level == mutant.level:
            wanted = trial.id.startswith(mutant.caught_by)
        else:
            wanted = trial.check not in seen and not trial.id.startswith(SLOW)
        seen.add(trial.check)
        if wanted:
            yield trial


@pytest.fixture
def subject_of():
    """Make subjects, and end the threads of simulated ones."""
    made = []

    def make(mutant):
        subject = mutant.subject()
        made.append(subject)
        return subject

    yield make
    for subject in made:
        backend = subject.info.load()
        if isinstance(backend, SimBackend):
            backend.sim.stop()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught_where_it_should_be_and_named(mutant, subject_of):
    subject = subject_of(mutant)

    failed = [outcome for trial in trials_up_to(mutant) if (outcome := run_trial(subject, trial)).status == FAIL]

    assert failed, "nothing was caught"
    assert {outcome.level for outcome in failed} == {mutant.level}, [f"{one.id}: {one.told}" for one in failed][:3]
    assert any(mutant.says in outcome.told for outcome in failed), [outcome.told for outcome in failed]


@pytest.mark.parametrize("mutant", ONE_RUN_MUTANTS, ids=lambda mutant: mutant.name)
def test_blocks_of_one_run_and_page_major_hosts_have_cases_of_their_own(mutant, subject_of):
    subject = subject_of(mutant)

    failed = {trial.id for trial in select_trials((mutant.level,)) if run_trial(subject, trial).status == FAIL}

    assert failed
    assert all(trial.endswith(("-one-run]", "other-host-layouts[page-major]")) for trial in failed), failed


def test_there_are_many_mutants_of_every_device_level():
    levels = {mutant.level for mutant in MUTANTS}

    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 100
    assert set(LEVELS) - levels == {"states"}, "states fail where blocks do: they are one memory with one copy"
