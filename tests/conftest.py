"""What the core's tests share: hypothesis profiles and an environment that no plugin variable reaches."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Fixed examples for every run; CACHECORE_TEST_PROFILE=fuzz searches anew each time, for long runs.
settings.register_profile("fixed", max_examples=30, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "fuzz", max_examples=3000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("CACHECORE_TEST_PROFILE", "fixed"))


@pytest.fixture(autouse=True)
def _no_plugin_variables(monkeypatch):
    for name in ("PLUGINS", "DISABLE_PLUGINS", "DISABLE_COPIES", "BACKEND"):
        monkeypatch.delenv(f"CACHECORE_{name}", raising=False)
