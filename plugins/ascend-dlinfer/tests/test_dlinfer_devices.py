"""The backends on simulated devices, each in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import signal

import pytest


def told(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_python_device_agrees_with_the_oracle(fresh):
    found = told(fresh("device_cases.py", "python", "ascend"))

    assert found == {
        "paths": {"copy": "dlinfer:index", "swap_out": "dlinfer:store:foreach", "swap_in": "dlinfer:load:foreach"},
        "wrong": {},
    }


@pytest.mark.parametrize(
    ("vendor", "variables", "rung"),
    [
        ("ascend", {}, "address-table"),
        ("ascend", {"CACHECORE_NPU_SIM_BATCH_OP": "0"}, "foreach"),
        ("ascend", {"CACHECORE_NPU_SIM_STRICT": "1"}, "address-table"),
        ("camb", {"CACHECORE_NPU_SIM_STRICT": "1"}, "loop"),
    ],
    ids=["ascend", "ascend-old-cann", "ascend-strict", "camb-strict"],
)
def test_native_device_agrees_with_the_oracle(fresh, native, vendor, variables, rung):
    found = told(fresh("device_cases.py", "native", vendor, **variables))

    assert found == {
        "paths": {"copy": "dlinfer:index", "swap_out": f"dlinfer:store:{rung}", "swap_in": f"dlinfer:load:{rung}"},
        "wrong": {},
    }


@pytest.mark.parametrize(
    ("swap", "outcome"), [("right", "right"), ("staged", "right"), ("no-wait", "wrong"), ("no-record", "wrong")]
)
def test_order_that_is_missing_shows(fresh, native, swap, outcome):
    done = fresh("device_mutants.py", swap)

    assert done.stdout.strip() == outcome, done.stderr


def test_host_read_of_a_device_address_shows(fresh, native):
    assert fresh("device_mutants.py", "read").returncode == -signal.SIGSEGV


CAPABILITIES = """
import json, cachecore_npu_sim
cachecore_npu_sim.install()
from cachecore import BlockCacheGeometry, DeviceSpec, EngineStateError, KvCacheConfig
from cachecore.kv import kv_specs
from cachecore.plan import plan_from_specs
from cachecore_ascend_dlinfer import DlinferBackend
backend, geometry = DlinferBackend(), BlockCacheGeometry(64)
config = KvCacheConfig(layers=1, num_kv_heads=2, head_dim=8, dtype="float16")
plan = plan_from_specs(kv_specs(config, geometry, backend.policy), geometry, backend.policy)
allocation = backend.allocate(plan.layout, 2, DeviceSpec("npu"))
def tried(call, *arguments):
    try:
        return repr(call(allocation, *arguments))
    except EngineStateError as error:
        return str(error)
print(json.dumps({**backend.capabilities(), "regions": len(backend.regions(allocation)),
    "read": tried(backend.read, 0, 0, 1), "write": tried(backend.write, 0, 0, b"1")}))
"""


def test_what_was_not_run_is_declared(fresh):
    found = told(fresh("-c", CAPABILITIES))

    assert found["graph_capture"] == "capture in a graph was never run on Ascend hardware"
    assert found["byte_addressable"] is None
    assert "page" in found["pinned_host"]
    assert (found["regions"], found["read"]) == (2, r"b'\x00'")


def test_310p_is_declared_not_byte_addressable(fresh):
    found = told(fresh("-c", CAPABILITIES, CACHECORE_ASCEND_SOC="310P", CACHECORE_NPU_SIM_SOC="Ascend310P3"))

    assert "NZ format" in found["byte_addressable"]
    assert found["regions"] == 0
    assert all("has no byte addresses" in found[way] for way in ("read", "write"))


@pytest.mark.parametrize(
    ("backend", "device", "variables"),
    [
        ("ascend", "npu", {}),
        ("ascend", "npu:native", {}),
        ("ascend", "npu:native", {"CACHECORE_NPU_SIM_STRICT": "1"}),
        ("ascend", "npu:native", {"CACHECORE_NPU_SIM_PINNED": "0"}),
        ("camb", "mlu:native", {}),
        ("torch-default", "npu", {}),
        ("torch-default", "npu:native", {}),
        ("torch-default", "npu:native", {"CACHECORE_NPU_SIM_PINNED": "0"}),
    ],
    ids=[
        "python",
        "native",
        "strict",
        "native-unpinned",
        "camb",
        "torch-default-python",
        "torch-default-native",
        "torch-default-native-unpinned",
    ],
)
def test_conformance(fresh, native, backend, device, variables):
    report = checked(fresh, backend, device, **variables)

    assert not outcomes(report, "fail")
    assert report["unavailable"] is None


def test_conformance_of_310p_ends_where_engines_begin(fresh):
    report = checked(fresh, "ascend", "npu", CACHECORE_ASCEND_SOC="310P", CACHECORE_NPU_SIM_SOC="Ascend310P3")

    assert not outcomes(report, "fail")
    assert "(heads * dim / 16, tokens, 16)" in report["unavailable"]
    assert any(name.startswith("layout/") for name in outcomes(report, "pass"))


def checked(fresh, backend: str, device: str, **variables: str) -> dict:
    if not importlib.metadata.entry_points(group="torch.backends", name="cachecore_npu_sim"):
        pytest.skip("the distributions are not installed, so torch and the registry do not find them")
    arguments = ["-m", "cachecore", "check", backend, "--json", "--device", device.partition(":")[0]]
    return json.loads(fresh(*arguments, CACHECORE_NPU_SIM=device, **variables).stdout)


def outcomes(report: dict, status: str) -> list[str]:
    return [
        f"{one['id']}: {one.get('told')}"
        for level in report["levels"]
        for one in level["checks"]
        if one["status"] == status
    ]
