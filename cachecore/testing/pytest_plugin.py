"""The kit as a pytest plugin: ``pytest --pyargs cachecore.testing --cachecore-backend NAME``."""

from __future__ import annotations

import pytest

__all__ = ["cachecore_subject", "pytest_addoption", "pytest_generate_tests"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name what is checked."""
    group = parser.getgroup("cachecore", "conformance of a cachecore backend")
    group.addoption("--cachecore-backend", metavar="NAME", help="an installed backend: name or name@distribution")
    group.addoption("--cachecore-device", metavar="DEVICE", help="default: the first that the backend names")
    group.addoption("--cachecore-level", action="append", metavar="LEVEL", help="may be given several times")


@pytest.fixture(scope="session")
def cachecore_subject(request: pytest.FixtureRequest) -> object:
    """The backend that is checked. Override it in a ``conftest.py`` to check one that is not installed."""
    from cachecore.registry import PluginRegistry
    from cachecore.testing.subject import find_subject

    name = request.config.getoption("--cachecore-backend")
    if name is None:
        pytest.exit("name the backend with --cachecore-backend; `cachecore backends` shows which are installed", 4)
    registry = PluginRegistry()
    registry.load_entry_points()
    return find_subject(registry, name, request.config.getoption("--cachecore-device"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test a check and case."""
    if "cachecore_trial" not in metafunc.fixturenames:
        return
    from cachecore.testing.running import select_trials

    try:
        trials = select_trials(metafunc.config.getoption("--cachecore-level") or ())
    except ValueError as error:
        raise pytest.UsageError(f"--cachecore-level: {error}") from error
    metafunc.parametrize("cachecore_trial", trials, ids=[trial.id for trial in trials])
