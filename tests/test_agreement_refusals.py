"""What one rank has wrong is heard on all ranks."""

from __future__ import annotations

import time

import pytest
from agreeing import agreed, stage, together

from cachecore import (
    AgreementError,
    AllocationError,
    PlanError,
    agree,
)
from cachecore.agreement import confirm, solve_reports
from cachecore.local_ranks import local_ranks
from cachecore.report import check_alike, rank_report


@pytest.mark.parametrize(
    ("wrong", "kind"), [({"ratio": 2}, PlanError), ({"num_blocks": "many"}, TypeError), ({"model": 3}, TypeError)]
)
def test_an_input_that_one_rank_refuses_is_refused_on_all(wrong, kind):
    first, second, third = agreed((stage(0), 4096), (stage(1), 4096, wrong), (stage(2), 4096))

    assert type(second) is kind
    for error in (first, third):
        assert isinstance(error, AgreementError)
        assert str(error) == f"rank 1 cannot be sized: {kind.__name__}: {second}"


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0}, {"timeout_s": "soon"}, {"num_blocks": {3: 1}}, {"host_concurrency": 2}]
)
def test_a_limit_or_count_that_one_rank_refuses_is_refused_on_all_too(wrong):
    def step(communicator, more):
        return agree(communicator, stage(communicator.rank), **{"memory_nbytes": 4096, "timeout_s": 10, **more})

    first, second = together(step, {}, wrong)

    assert isinstance(first, AgreementError)
    assert str(first) == f"rank 1 cannot be sized: {type(second).__name__}: {second}"


def test_plans_that_cannot_be_read_are_told_to_all_ranks():
    first, second = agreed((stage(0), 4096), ("plans", 4096))

    assert "rank 1 cannot be sized: TypeError: plans must be a CachePlanSet" in str(first)
    assert isinstance(second, TypeError)


def test_what_is_no_communicator_is_told():
    for use in (lambda: agree(None, stage(0), memory_nbytes=1), lambda: confirm(None)):
        with pytest.raises(TypeError, match=r"communicator must have rank, world_size and all_gather\(\), not be None"):
            use()


def test_what_is_no_error_is_not_confirmed():
    (rank,) = local_ranks(1)

    with pytest.raises(TypeError, match="error must be the exception that opening raised"):
        confirm(rank, "it failed")


@pytest.mark.parametrize(("reports", "told"), [("reports", "reports must be a sequence"), ([3], "report 0 must be")])
def test_what_are_no_reports_is_told(reports, told):
    for use in (lambda: solve_reports(reports, 1), lambda: check_alike(reports)):
        with pytest.raises(TypeError, match=told):
            use()


def test_no_reports_are_refused():
    with pytest.raises(PlanError, match="no reports given"):
        solve_reports([], 0)


def test_a_rank_of_another_model_is_told_on_all():
    answers = agreed((stage(0), 4096), (stage(0, head_dim=16), 4096), (stage(0), 4096))

    assert {str(answer) for answer in answers} == {
        "ranks 0 and 1 disagree on layer 0 of cache 'k_cache'; they were built from different models or geometries"
    }


def test_a_rank_that_never_comes_fails_all_others_in_time():
    def step(communicator, plans):
        if plans is None:
            return None
        return agree(communicator, plans, memory_nbytes=4096, timeout_s=0.2)

    started = time.monotonic()
    answers = together(step, stage(0), None, stage(1))

    assert time.monotonic() - started < 5
    assert [type(answer) for answer in answers] == [AgreementError, type(None), AgreementError]
    assert "rank 1 did not come within 0.2 s" in str(answers[0])


def test_a_report_is_expected_of_every_rank():
    with pytest.raises(AgreementError, match="1 ranks reported, but there are 2"):
        solve_reports([rank_report(stage(0), memory_nbytes=4096)], 2)


def test_all_ranks_hear_that_one_could_not_open():
    failed = AllocationError("no memory")

    answers = together(lambda communicator, error: confirm(communicator, error, timeout_s=10), None, failed, None)

    assert {str(answer) for answer in answers} == {"rank 1 could not open its engine: AllocationError: no memory"}
    assert answers[1].__cause__ is failed


def test_all_ranks_hear_that_all_are_open():
    assert together(lambda communicator, _: confirm(communicator, timeout_s=10), None, None) == [None, None]
