from __future__ import annotations

import pytest
from samples import layer_spec

from cachecore import (
    API_VERSION,
    COMPLETED,
    ByteBackend,
    CacheBackend,
)
from cachecore.layout_kinds import packed_layout
from cachecore.reference import BYTE_BACKEND, BYTE_COPY


def test_completed_work_is_done():
    COMPLETED.wait()
    COMPLETED.wait(object())
    COMPLETED.synchronize()

    assert COMPLETED.done() is True


def test_a_backend_must_do_everything():
    missing = {
        "allocate",
        "adopt",
        "free",
        "view",
        "row_view",
        "memory",
        "capabilities",
        "zero",
        "read",
        "write",
        "regions",
    }

    assert CacheBackend.__abstractmethods__ == missing


@pytest.mark.parametrize(
    ("policy", "version", "served"), [("standard", "2", True), ("standard", "1", False), ("camb", "2", False)]
)
def test_a_backend_serves_the_layouts_of_its_own_policy(policy, version, served):
    reason = ByteBackend().serves_layout(packed_layout([layer_spec()]), policy, version)

    assert (reason is None) is served
    if not served:
        assert reason == (
            f"the plan was laid out by policy '{policy}' version {version}, "
            "but backend 'bytes' has 'standard' version 2"
        )


def test_records_state_the_interface_they_were_written_for():
    assert (BYTE_BACKEND.api_version, BYTE_COPY.api_version) == (API_VERSION, API_VERSION)
