"""What the core's tests share: hypothesis profiles and an environment that no plugin variable reaches."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# Fixed examples for every run; CACHECORE_TEST_PROFILE=fuzz searches anew each time, for long runs.
settings.register_profile("fixed", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "fuzz", max_examples=6000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("CACHECORE_TEST_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def _no_plugin_variables(monkeypatch):
    for name in ("PLUGINS", "DISABLE_PLUGINS", "DISABLE_COPIES", "BACKEND"):
        monkeypatch.delenv(f"CACHECORE_{name}", raising=False)


@pytest.fixture
def on_path(monkeypatch):
    """Put folders on ``sys.path`` as if their plugins were installed; forget their modules afterwards."""
    before = set(sys.modules)

    def put(*folders):
        for folder in folders:
            monkeypatch.syspath_prepend(str(folder))

    yield put
    for name in set(sys.modules) - before:
        if "plugin" in name or name.startswith("broken_"):
            del sys.modules[name]
