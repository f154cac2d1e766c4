"""Every check as a test. Run with ``pytest --pyargs cachecore.testing --cachecore-backend NAME``."""

from __future__ import annotations

import pytest

from cachecore.testing.checks import Trial
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.subject import Subject


def test_conformance(cachecore_subject: Subject, cachecore_trial: Trial) -> None:
    """The backend keeps this contract."""
    try:
        cachecore_trial(cachecore_subject)
    except Skipped as skipped:
        pytest.skip(skipped.reason)
    except Fault as fault:
        pytest.fail(str(fault), pytrace=False)
