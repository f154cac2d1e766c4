"""Right backends pass every level, and skip only what they say they cannot do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conformance.mutant import byte_subject
from conformance.sim import SimBackend, sim_subject
from conformance.sleep_mutants import ReleaseKeepsTheMemory
from conformance.stable_sim import stable_subject
from stable_bytes import StableBytes

from cachecore import ByteBackend, DeviceSpec
from cachecore.registry import PluginRegistry
from cachecore.testing import FAIL, LEVELS, PASS, SKIP, find_subject, run_checks, run_trial, select_trials
from cachecore.transfer import ByteCopy


@pytest.fixture(params=[sim_subject, stable_subject])
def simulated(request):
    subject = request.param()
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
    assert {"device-ids", "order", "sleep"} <= skipped <= {"discovery", "device-ids", "order", "memory", "sleep"}


def test_stable_addresses_are_checked_where_declared_and_refused_elsewhere():
    stable, usual = (run_checks(subject, levels=("sleep",)) for subject in (byte_subject(StableBytes), byte_subject()))

    assert not failures([*stable, *usual])
    told = {outcome.id: outcome.told for outcome in usual if "stable" in outcome.id}
    assert told.pop("sleep/stable-or-refused") == "refused: the backend does not declare stable_addresses"
    assert set(told.values()) == {"stable_addresses is not declared"}
    assert {outcome.id for outcome in stable if outcome.status == PASS} > set(told) - {"sleep/stable-graph"} - {
        f"sleep/{name}[stable]" for name in ("sees-a-delayed-producer", "waits-for-every-stream")
    }


def gives_memory_back(backend):
    """The check's outcome for memory of the host."""
    subject = byte_subject(backend)
    subject = replace(subject, device=DeviceSpec("cpu"), info=replace(subject.info, device_types=("cpu",)))
    (trial,) = (one for one in select_trials(("sleep",)) if one.id == "sleep/gives-memory-back[usual]")
    return run_trial(subject, trial)


def test_host_memory_is_compared_by_what_the_process_holds():
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not tell what a process holds")

    assert gives_memory_back(ByteBackend).status == PASS
    assert "release() keeps the buffers" in gives_memory_back(ReleaseKeepsTheMemory).told


def test_host_memory_that_cannot_be_told_apart_is_not_compared(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: False)

    found = gives_memory_back(ReleaseKeepsTheMemory)

    assert (found.status, found.told.partition(",")[0]) == (SKIP, "what is free on the host is shared with others")


class WayByNumber(ByteCopy):
    """Takes each number of blocks by another way, and tells none of them until it is called."""

    def __call__(self, pairs, after=()):
        self.path = f"bytes:{len(pairs)}"
        return super().__call__(pairs, after)


def test_a_copy_may_choose_its_way_by_the_number_of_blocks():
    outcomes = run_checks(byte_subject(copy=WayByNumber))

    assert not failures(outcomes)


def test_graphs_are_replayed_after_a_sleep():
    subject = stable_subject()

    outcomes = {outcome.id: outcome for outcome in run_checks(subject, levels=("sleep",))}

    assert outcomes["sleep/stable-graph"].status == PASS
    assert {outcome.status for outcome in outcomes.values()} == {PASS}
    subject.backend.sim.stop()


@pytest.mark.parametrize("level", LEVELS)
def test_asynchronous_backend_passes(level, simulated):
    outcomes = run_checks(simulated, levels=(level,))

    assert not failures(outcomes)
    assert level != "order" or {outcome.status for outcome in outcomes} == {PASS}
