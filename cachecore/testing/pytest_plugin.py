"""The kit as a pytest plugin: ``pytest --pyargs cachecore.testing --cachecore-backend NAME``."""

from __future__ import annotations

import pytest

__all__ = [
    "cachecore_subject",
    "pytest_addoption",
    "pytest_generate_tests",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name what is checked."""
    group = parser.getgroup("cachecore", "conformance of a cachecore backend")
    group.addoption("--cachecore-backend", metavar="NAME", help="an installed backend: name or name@distribution")
    group.addoption("--cachecore-device", metavar="DEVICE", help="default: the first that the backend names")
    group.addoption("--cachecore-copies", metavar="DISTRIBUTION", help="whose block copies go before the backend's own")
    group.addoption("--cachecore-level", action="append", metavar="LEVEL", help="may be given several times")
    group.addoption(
        "--cachecore-device-optional",
        action="store_true",
        help="do not fail where the backend does not serve the device, so that nothing was checked on it",
    )
    parser.addini("cachecore_device_optional", type="bool", help="as --cachecore-device-optional", default=False)


@pytest.fixture(scope="session")
def cachecore_subject(request: pytest.FixtureRequest) -> object:
    """The backend that is checked. Override it in a ``conftest.py`` to check one that is not installed."""
    from cachecore.registry import PluginRegistry
    from cachecore.testing.subject import find_subject

    option = request.config.getoption
    name = option("--cachecore-backend")
    if name is None:
        pytest.exit("name the backend with --cachecore-backend; `cachecore backends` shows which are installed", 4)
    registry = PluginRegistry()
    registry.load_entry_points()
    return find_subject(registry, name, option("--cachecore-device"), copies=option("--cachecore-copies"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test a check and case."""
    if "cachecore_trial" not in metafunc.fixturenames:
        return
    from cachecore.testing.checks import DEVICE_LEVELS
    from cachecore.testing.presence import presence
    from cachecore.testing.running import select_trials

    config = metafunc.config
    try:
        trials = select_trials(config.getoption("--cachecore-level") or ())
    except ValueError as error:
        raise pytest.UsageError(f"--cachecore-level: {error}") from error
    if any(trial.check.level in DEVICE_LEVELS for trial in trials):
        optional = config.getoption("--cachecore-device-optional") or config.getini("cachecore_device_optional")
        trials.insert(0, presence(optional=optional))
    metafunc.parametrize("cachecore_trial", trials, ids=[trial.id for trial in trials])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail when the block copies that were named moved nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.exitstatus == pytest.ExitCode.OK and _unserved(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say whose copies ran, and loudly when an optional device was not there."""
    lines = _told(terminalreporter, "cachecore")
    if lines:
        terminalreporter.write_sep("-", "cachecore: the copies that were checked")
        for line in lines:
            terminalreporter.write_line(line)
    for reason in _told(terminalreporter, "cachecore-absent"):
        terminalreporter.write_sep("!", "cachecore: NOTHING WAS CHECKED ON THE DEVICE", red=True, bold=True)
        terminalreporter.write_line(reason)
    wrong = _unserved(terminalreporter)
    if wrong is not None:
        terminalreporter.write_sep("!", "cachecore: THE NAMED COPIES WERE NOT CHECKED", red=True, bold=True)
        terminalreporter.write_line(wrong)


def _unserved(reporter: pytest.TerminalReporter) -> str | None:
    from cachecore.testing.ways import unserved

    option = reporter.config.getoption
    movers = set(_told(reporter, "cachecore-mover"))
    return unserved(option("--cachecore-copies"), movers, str(option("--cachecore-backend")))


def _told(reporter: pytest.TerminalReporter, wanted: str) -> list[str]:
    """What the tests told under one key, each once: in their reports, which come from workers of pytest-xdist too."""
    reports = [report for found in reporter.stats.values() for report in found]
    told = [value for report in reports for value in getattr(report, "user_properties", ())]
    return list(dict.fromkeys(str(text) for key, text in told if key == wanted))
