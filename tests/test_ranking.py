from __future__ import annotations

from itertools import permutations

import importlib_metadata
import pytest
from announcing import backend

from cachecore import DeviceSpec
from cachecore.ranking import (
    BackendRecord,
    PluginFailure,
    PluginRecord,
    claimed_twice,
    forced_name,
    is_named,
    no_backend_error,
    origin_of,
    rank,
)


def record(name, priority=30, distribution="dist"):
    return BackendRecord(backend(name, priority=priority), PluginRecord("entry", distribution, "1"))


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_rank_is_priority_then_name_then_distribution(order):
    best = [record("z", 90), record("a", 50, "dist-1"), record("a", 50, "dist-2"), record("b", 50)]

    assert sorted((best[number] for number in order), key=rank) == best


@pytest.mark.parametrize(
    ("forced", "named"),
    [
        ("fast", True),
        ("fast@dist", True),
        ("fast@other", False),
        ("slow", False),
        ("slow@dist", False),
        ("fas", False),
        (" fast @ dist ", True),
    ],
)
def test_a_name_may_carry_its_distribution(forced, named):
    assert is_named(record("fast"), forced) is named


@pytest.mark.parametrize(
    ("asked", "variable", "forced"),
    [
        (None, None, None),
        ("fast", "slow", "fast"),
        (None, "slow", "slow"),
        ("", "slow", "slow"),
        (" ", " ", None),
        (None, "  ", None),
        (None, " slow @ dist ", "slow@dist"),
        ("\tfast\n", None, "fast"),
        ("fast@", None, "fast"),
        ("fast @ ", None, "fast"),
        ("@dist", None, "@dist"),
        ("@", "slow", "@"),
    ],
)
def test_stray_spaces_force_nothing(asked, variable, forced):
    assert forced_name(asked, {} if variable is None else {"CACHECORE_BACKEND": variable}) == forced


@pytest.mark.parametrize("asked", [3, b"fast", record("fast"), 0, False])
def test_a_backend_is_forced_by_its_name(asked):
    with pytest.raises(TypeError, match=r"backend must be a name, or name@distribution, not "):
        forced_name(asked, {})


def test_names_claimed_twice_are_told_with_both_distributions():
    records = [record("twin", distribution="b"), record("one"), record("twin", distribution="a")]

    assert claimed_twice(records) == {"twin": "name 'twin' is claimed by b and a; force one as name@distribution"}


def test_no_backend_error_leaves_out_what_was_not_asked_for():
    rejected = [(record("fast"), "no card"), (record("slow"), "backend 'fast' is forced")]
    unused = [PluginFailure(PluginRecord("bad", "dist-bad", "1"), "import failed")]

    error = no_backend_error(DeviceSpec("cuda"), "fast", rejected, [record("fast"), record("slow")], unused)

    assert error.reasons == ("fast (dist): no card", "bad (dist-bad): import failed")
    assert str(error) == (
        "backend 'fast', which is forced, does not serve cuda: fast (dist): no card; bad (dist-bad): import failed. "
        "`python -m pip install ./plugins/cuda-triton` in a checkout (cachecore-cuda-triton is not on PyPI yet) "
        "installs one for cuda; "
        "`cachecore backends` shows all"
    )


def test_a_plugin_that_is_there_is_not_recommended():
    installed = record("cuda-triton", distribution="cachecore-cuda-triton")

    error = no_backend_error(DeviceSpec("cuda"), None, [(installed, "no driver")], [installed], [])

    assert str(error) == (
        "no backend serves cuda: cuda-triton (cachecore-cuda-triton): no driver. `cachecore backends` shows all"
    )
    assert error.install == "cachecore-cuda-triton"


def test_no_backend_error_without_any_plugin():
    assert "no backend serves mlu: no plugin is installed." in str(
        no_backend_error(DeviceSpec("mlu"), None, [], [], [])
    )


def test_origin_is_the_distributions_name_and_version():
    (entry,) = importlib_metadata.distribution("pluggy").entry_points.select(name="absent") or (
        importlib_metadata.EntryPoint("mine", "module", "cachecore"),
    )

    assert origin_of(entry) == PluginRecord("mine", "unknown", "?")
