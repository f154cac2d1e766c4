"""Right backends pass every level, and skip only what they say they cannot do."""

from __future__ import annotations

import pytest
from conformance.sim import SimBackend, sim_subject

from cachecore.registry import PluginRegistry
from cachecore.testing import FAIL, LEVELS, PASS, SKIP, find_subject, run_checks


@pytest.fixture
def simulated():
    subject = sim_subject()
    yield subject
    backend = subject.backend
    assert isinstance(backend, SimBackend)
    backend.sim.stop()


def failures(outcomes):
    return [f"{outcome.id}: {outcome.told}" for outcome in outcomes if outcome.status == FAIL]


@pytest.mark.parametrize("level", LEVELS)
def test_byte_backend_passes(level):
    outcomes = run_checks(find_subject(PluginRegistry(), "bytes"), levels=(level,))

    assert outcomes
    assert not failures(outcomes)


def test_byte_backend_skips_what_it_declares():
    outcomes = run_checks(find_subject(PluginRegistry(), "bytes"))

    skipped = {outcome.level for outcome in outcomes if outcome.status == SKIP}
    assert {"device-ids", "order"} <= skipped <= {"discovery", "device-ids", "order", "memory"}


@pytest.mark.parametrize("level", LEVELS)
def test_asynchronous_backend_passes(level, simulated):
    outcomes = run_checks(simulated, levels=(level,))

    assert not failures(outcomes)
    assert level != "order" or {outcome.status for outcome in outcomes} == {PASS}
