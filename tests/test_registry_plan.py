from __future__ import annotations

import pytest
from announcing import backend, registry_of

from cachecore import NoBackendError, PluginRegistry, StandardLayoutPolicy
from cachecore.ranking import PluginFailure, PluginRecord


def policy(name, version="2"):
    return type("Vendor", (StandardLayoutPolicy,), {"name": name, "version": version})


@pytest.mark.parametrize(
    ("device", "line"),
    [
        ("cpu", "cachecore-cpu"),
        ("cuda:1", "cachecore-cuda-triton"),
        ("npu", "cachecore-ascend-dlinfer"),
        ("mlu", "cachecore-torch-default"),
    ],
)
@pytest.mark.parametrize("method", ["select", "plan_backend"])
def test_no_backend_at_all_gives_the_pip_line(method, device, line):
    told = rf"`python -m pip install \./plugins/{line[10:]}` .*\({line} is not .*\) installs one for {device[:3]}"
    with pytest.raises(NoBackendError, match=told) as caught:
        getattr(PluginRegistry(environ={}), method)(device)

    assert caught.value.device == device
    assert caught.value.install == line
    assert caught.value.reasons == (f"bytes (cachecore-kv): serves null, not {device.partition(':')[0]}",)


def test_no_backend_tells_every_reason():
    registry = registry_of(backend("gpu", ("cuda",), probe=lambda device: "no driver"))
    registry.failures.append(PluginFailure(PluginRecord("bad", "cachecore-bad", "1"), "import failed: no libx"))
    registry.skipped.append(PluginFailure(PluginRecord("off", "cachecore-off", "1"), "denied"))

    with pytest.raises(NoBackendError) as caught:
        registry.select("cuda")

    assert caught.value.reasons == (
        "gpu (dist-0): no driver",
        "bytes (cachecore-kv): serves null, not cuda",
        "bad (cachecore-bad): import failed: no libx",
        "off (cachecore-off): denied",
    )
    assert all(reason in str(caught.value) for reason in caught.value.reasons)


def unprobed(device):
    raise AssertionError("planning probes nothing here")


def test_planning_probes_nothing_while_all_share_one_policy():
    registry = registry_of(
        backend("fast", ("cuda",), priority=90, probe=unprobed), backend("any", ("*",), priority=95, probe=unprobed)
    )

    assert registry.plan_backend("cuda").info.name == "fast"


def test_planning_prefers_a_backend_that_names_the_device():
    registry = registry_of(
        backend("any", ("*",), priority=95, probe=unprobed),
        backend("fast", ("cuda",), priority=90, probe=unprobed, load_policy=policy("heads-first")),
    )

    assert registry.plan_backend("cuda").info.name == "fast"


@pytest.mark.parametrize("other", [policy("camb"), policy("standard", "1")])
def test_planning_probes_when_two_policies_tie(other):
    registry = registry_of(
        backend("a", ("cuda",), probe=lambda device: "another vendor's card"),
        backend("b", ("cuda",), load_policy=other),
    )

    assert registry.plan_backend("cuda").info.name == "b"


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_planning_takes_the_forced_backend_unprobed(way):
    registry = registry_of(
        backend("fast", ("cuda",), priority=90),
        backend("slow", ("cuda",), probe=unprobed, load_policy=policy("camb")),
        environ={"CACHECORE_BACKEND": "slow"} if way == "environment" else {},
    )

    assert registry.plan_backend("cuda", backend="slow" if way == "argument" else None).info.name == "slow"


def test_planning_refuses_a_name_claimed_twice():
    registry = registry_of(backend("twin", priority=90), backend("twin", priority=90))

    assert registry.plan_backend("null").info.name == "bytes"
    with pytest.raises(NoBackendError, match=r"'twin' is claimed by dist-0 and dist-1; force one as name@distribution"):
        registry.plan_backend("null", backend="twin")
    assert registry.plan_backend("null", backend="twin@dist-1").plugin.distribution == "dist-1"


def broken_policy():
    raise ImportError("no module named vendor")


@pytest.mark.parametrize(
    ("load_policy", "reason"),
    [
        (broken_policy, "load_policy() raised ImportError: no module named vendor"),
        (dict, "load_policy() returned {}, which is no LayoutPolicy"),
    ],
)
def test_a_policy_that_cannot_be_loaded_hides_no_other(load_policy, reason):
    broken = backend("broken", ("null", "cuda"), priority=90, load_policy=load_policy)
    registry = registry_of(broken, backend("good"))

    assert registry.plan_backend("null").info.name == "good"
    with pytest.raises(NoBackendError) as caught:
        registry.plan_backend("cuda")
    assert f"broken (dist-0): {reason}" in caught.value.reasons
