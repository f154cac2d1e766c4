"""Beside the real torch_npu, where CANN is not: ``tox run -e torch-npu``."""

from __future__ import annotations

from ctypes.util import find_library
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("torch_npu") is None, reason="torch_npu is not installed"),
    pytest.mark.skipif(find_library("ascendcl") is not None, reason="CANN is installed"),
]

SELECT = """
from cachecore import BlockCacheGeometry, KvCacheConfig, NoBackendError, build_block_cache_plan, open_engine
from cachecore.registry import PluginRegistry
registry = PluginRegistry()
registry.load_entry_points()
assert not registry.failures, registry.failures
try:
    registry.select("npu", backend="ascend")
except NoBackendError as error:
    print(str(error).replace("\\n", " "))
kv = KvCacheConfig(layers=1, num_kv_heads=2, head_dim=64, dtype="bfloat16")
plans = build_block_cache_plan(kv=kv, geometry=BlockCacheGeometry(16), device="cpu")
with open_engine(plans, 4) as engine:
    engine.copy_blocks({0: 1}).synchronize()
    print("copied on", engine.backend.name)
"""


def test_missing_library_is_named_and_others_stay_usable(fresh):
    done = fresh("-c", SELECT, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    reason, copied = done.stdout.splitlines() or (done.stderr, "")
    assert "unavailable: lib" in reason
    assert ".so: cannot open shared object file" in reason
    assert "torch_npu is installed, but not what it needs" in reason
    assert copied == "copied on torch-default"


PROBE = """
from cachecore import DeviceSpec
from cachecore_ascend_dlinfer.probes import probe_ascend
print(probe_ascend(DeviceSpec("npu")))
"""


def test_missing_library_is_named_where_torch_loads_its_extensions(fresh):
    done = fresh("-c", PROBE, TORCH_DEVICE_BACKEND_AUTOLOAD="1")

    assert ".so: cannot open shared object file" in done.stdout, done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout
