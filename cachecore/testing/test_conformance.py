"""Every check as a test. Run with ``pytest --pyargs cachecore.testing --cachecore-backend NAME``."""

from __future__ import annotations

import pytest

from cachecore.testing.checks import LEVELS, Trial
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.subject import Subject


def test_conformance(cachecore_subject: Subject, cachecore_trial: Trial, request: pytest.FixtureRequest) -> None:
    """The backend keeps this contract."""
    tell = request.node.user_properties.append  # for the summary, from a worker of pytest-xdist too
    before, movers = set(cachecore_subject.ways.lines()), cachecore_subject.ways.movers
    wrong = ""
    try:
        cachecore_trial(cachecore_subject)
    except Skipped as skipped:
        if cachecore_trial.check.level not in LEVELS:
            tell(("cachecore-absent", skipped.reason))
        pytest.skip(skipped.reason)
    except Fault as fault:
        wrong = str(fault)
    finally:
        for line in cachecore_subject.ways.lines():
            if line not in before:
                tell(("cachecore", line))
        for distribution in cachecore_subject.ways.movers - movers:
            tell(("cachecore-mover", distribution))
    if wrong:  # out here, where the fault is not shown once more as what happened before
        pytest.fail(wrong, pytrace=False)
