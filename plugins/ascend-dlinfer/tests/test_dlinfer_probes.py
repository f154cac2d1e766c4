"""Who serves which device, and what the reason names where nobody does."""

from __future__ import annotations

import importlib.metadata
from importlib.util import find_spec

import pytest

PROBE = """
import sys
from cachecore import DeviceSpec
from cachecore_ascend_dlinfer import probes
print(getattr(probes, "probe_" + sys.argv[1])(DeviceSpec.parse(sys.argv[2])))
"""
BROKEN = "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')\n"
MISSING = "libhccl.so: cannot open shared object file"


def test_missing_library_is_named(fresh):
    if find_spec("torch_npu"):
        pytest.skip("torch_npu is installed here")

    assert fresh("-c", PROBE, "ascend", "npu").stdout.startswith(
        "unavailable: torch_npu is not installed; install cachecore-ascend-dlinfer[ascend] (from a checkout: ./plugins/"
    )
    assert fresh("-c", PROBE, "camb", "mlu").stdout.startswith(
        "unavailable: torch_mlu is not installed; it comes with the SDK"
    )


def test_missing_cann_is_named(fresh, tmp_path):
    (tmp_path / "torch_npu.py").write_text(BROKEN)

    done = fresh("-c", PROBE, "ascend", "npu", first=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    assert done.stdout.startswith(f"unavailable: {MISSING}"), done.stderr
    assert "torch_npu is installed, but not what it needs" in done.stdout


def test_missing_cann_is_named_where_torch_itself_fails(fresh, tmp_path):
    (tmp_path / "torch_npu.py").write_text(BROKEN)
    info = tmp_path / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")

    done = fresh("-c", PROBE, "ascend", "npu", first=str(tmp_path))

    assert MISSING in done.stdout, done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout


def test_cuda_is_another_vendors_unless_torch_is_metax(fresh):
    reason = fresh("-c", PROBE, "maca", "cuda").stdout

    assert "is not MetaX's build, so cuda is another vendor's device here" in reason


@pytest.mark.parametrize(
    ("soc", "planned", "reason"),
    [
        ("Ascend910B3", "", "None"),
        ("Ascend910_9391", "910", "None"),
        ("Ascend310P3", "310P", "kernels of Ascend 310P take K and V in the NZ format (acl_format=29), as pages of"),
        ("Ascend310P3", "", "this chip is an Ascend 310P, but plans are made for 910; set CACHECORE_ASCEND_SOC=310P"),
        ("Ascend950", "", "this chip's number is 260, which this release does not know"),
        ("Ascend910B3", "A9", "CACHECORE_ASCEND_SOC is 'A9'"),
    ],
)
def test_chip_and_plan_must_agree(fresh, soc, planned, reason):
    code = "import cachecore_npu_sim; cachecore_npu_sim.install()\n" + PROBE
    done = fresh("-c", code, "ascend", "npu:0", CACHECORE_NPU_SIM_SOC=soc, CACHECORE_ASCEND_SOC=planned)

    assert done.stdout.startswith(reason), done.stderr


def test_each_vendor_serves_its_own_device(fresh):
    code = "import cachecore_npu_sim; cachecore_npu_sim.install('mlu')\n" + PROBE

    assert fresh("-c", code, "camb", "mlu:0").stdout.strip() == "None"
    assert "torch finds 1 mlu devices, so there is no mlu:7" in fresh("-c", code, "camb", "mlu:7").stdout
    assert fresh("-c", code, "ascend", "npu").stdout.strip() != "None"


def test_others_stay_usable(fresh):
    if not importlib.metadata.entry_points(group="cachecore", name="ascend-dlinfer"):
        pytest.skip("the distribution is not installed, so the registry does not find it")
    code = """
from cachecore import NoBackendError
from cachecore.registry import PluginRegistry
registry = PluginRegistry()
registry.load_entry_points()
print(registry.failures, registry.select("cpu").chosen.info.name)
try:
    registry.select("npu")
except NoBackendError as error:
    print(error)
"""
    done = fresh("-c", code, CACHECORE_NPU_SIM="")

    assert done.stdout.startswith("[] "), done.stderr
    assert "ascend" in done.stdout.partition("\n")[2], done.stderr
