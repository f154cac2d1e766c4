"""The conformance kit: puts every contract of a backend to an installed plugin, and names what is wrong.

``cachecore check BACKEND`` runs it and writes the report; ``pytest --pyargs cachecore.testing
--cachecore-backend BACKEND`` runs it as tests. From Python::

    registry = PluginRegistry()
    registry.load_entry_points()
    outcomes = run_checks(find_subject(registry, "cpu"), levels=("copy", "swap"))

A check is a function of a :class:`Subject` that raises :class:`Fault`, with what was expected, what was
found, at which byte, and the usual cause; or :class:`Skipped`, with the reason. Nothing here imports
pytest, and torch is imported only once a backend's views turn out to be tensors.
"""

from __future__ import annotations

from cachecore.testing.arrays import ArrayAdapter, ByteArrays, Streams
from cachecore.testing.checks import DEVICE_LEVELS, LEVELS, Check, Trial
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.results import FAIL, PASS, SKIP, Outcome, level_status, report
from cachecore.testing.running import run_checks, run_trial, select_trials
from cachecore.testing.subject import Subject, find_subject

__all__ = [
    "DEVICE_LEVELS",
    "FAIL",
    "LEVELS",
    "PASS",
    "SKIP",
    "ArrayAdapter",
    "ByteArrays",
    "Check",
    "Fault",
    "Outcome",
    "Skipped",
    "Streams",
    "Subject",
    "Trial",
    "find_subject",
    "level_status",
    "report",
    "run_checks",
    "run_trial",
    "select_trials",
]
