"""Both devices under several vendors' names, each in a process of its own."""

from __future__ import annotations

import importlib.metadata
import json
import signal

import pytest

PYTHON_GAPS = {
    "generator",
    "pinned memory",
    "accelerator.get_memory_info",  # as on torch_npu up to 2.12
    "accelerator.memory_allocated",
    "torch.Stream",
    "accelerator.synchronize",
    "event timing",
    "record_stream",
    "second device",
}
NATIVE_GAPS = {"generator"}


@pytest.mark.parametrize("name", ["npu", "mlu"])
def test_python_device_does_all_but_the_known(fresh, name):
    done = fresh("battery.py", "python", name)

    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout)
    assert set(failed) == PYTHON_GAPS, failed


@pytest.mark.parametrize("name", ["npu", "mlu"])
def test_native_device_does_all_but_the_known(fresh, compiler, name):
    done = fresh("battery.py", "native", name)

    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout)
    assert set(failed) == NATIVE_GAPS, failed


def test_native_device_shows_mistakes(fresh, compiler):
    done = fresh("hazards.py")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("name", "text"), [("DEVICES", "two"), ("DEVICES", "0"), ("MEMORY", "16G"), ("DELAY_US", "-1"), ("PINNED", "no")]
)
def test_native_device_refuses_what_is_no_number(fresh, name, text):
    done = fresh(
        "-c", "import cachecore_npu_sim; cachecore_npu_sim.install_native()", **{f"CACHECORE_NPU_SIM_{name}": text}
    )

    assert done.returncode == 1
    assert f"CACHECORE_NPU_SIM_{name} is {text!r}; expected a whole number, " in done.stderr


READ = (
    "import cachecore_npu_sim, ctypes; cachecore_npu_sim.install_native(); import torch;"
    "ctypes.string_at(torch.ones(4, device='npu').data_ptr(), 4)"
)


@pytest.mark.parametrize(("protect", "returncode"), [("1", -signal.SIGSEGV), ("0", 0)])
def test_host_faults_on_a_device_address(fresh, compiler, protect, returncode):
    assert fresh("-c", READ, CACHECORE_NPU_SIM_PROTECT=protect).returncode == returncode


PACKED = """
import cachecore_npu_sim; cachecore_npu_sim.install_native()
import torch
ids = torch.tensor([1, 3]).npu()
def write(cache):
    cache.view(8, 16, -1).index_copy_(0, ids, torch.ones(2, 16, 128, dtype=torch.half, device="npu"))
    torch.npu.synchronize()
write(torch.zeros(8, 16, 128, dtype=torch.half, device="npu"))
packed = torch.zeros(8, 8192, dtype=torch.uint8, device="npu")[:, :4096].view(torch.half).view(8, 16, 128)
try:
    write(packed)
except RuntimeError as error:
    print(error)
"""


def test_strict_device_refuses_operands_with_gaps(fresh, compiler):
    strict = fresh("-c", PACKED, CACHECORE_NPU_SIM_STRICT="1")
    lenient = fresh("-c", PACKED)

    assert "operand must be contiguous" in strict.stdout, strict.stderr
    assert (lenient.returncode, lenient.stdout) == (0, "")


AUTOLOADED = {"CACHECORE_NPU_SIM": "npu:native", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
"""What the environment names, with torch kept from asking for it by itself."""

TWO = "from cachecore_npu_sim import install; install('npu') is install('npu') or exit(1); install('mlu')"


def test_one_vendor_a_process(fresh):
    done = fresh("-c", TWO)

    assert done.returncode == 1
    assert "this process has the python device 'npu', so it cannot have the python device 'mlu'" in done.stderr


def test_import_imports_no_torch(fresh):
    done = fresh("-c", "import sys, cachecore_npu_sim; print('torch' in sys.modules)")

    assert done.stdout.strip() == "False", done.stderr


def test_torch_installs_what_the_environment_names(fresh):
    if not importlib.metadata.entry_points(group="torch.backends", name="cachecore_npu_sim"):
        pytest.skip("the distribution is not installed, so torch does not find it")
    code = "import torch; print(torch.zeros(1, device='npu').device)"

    assert fresh("-c", code, CACHECORE_NPU_SIM="npu").stdout.strip() == "npu:0"
    assert fresh("-c", code, CACHECORE_NPU_SIM="").returncode == 1
    assert "expected NAME, NAME:python or NAME:native" in fresh("-c", code, CACHECORE_NPU_SIM="npu:fast").stderr


def test_native_device_is_never_compiled_while_torch_is_imported(fresh, compiler, tmp_path):
    code = "import cachecore_npu_sim; cachecore_npu_sim.autoload()"

    done = fresh("-c", code, CACHECORE_NPU_SIM_CACHE=str(tmp_path), **AUTOLOADED)

    assert done.returncode == 1
    assert "is not built for this torch; run: python -m cachecore_npu_sim build" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"CACHECORE_NPU_SIM": "1"}, "CACHECORE_NPU_SIM asks for a python device '1': "),
        ({"CACHECORE_NPU_SIM": "cpu"}, "CACHECORE_NPU_SIM asks for a python device 'cpu': "),
        ({"CACHECORE_NPU_SIM": "npu", "CACHECORE_NPU_SIM_MEMORY": "-5"}, "CACHECORE_NPU_SIM_MEMORY is '-5'; expected"),
        (
            {"CACHECORE_NPU_SIM": "npu", "CACHECORE_NPU_SIM_MEMORY": "1GiB"},
            "MEMORY is '1GiB'; expected a number of bytes",
        ),
    ],
)
def test_what_no_device_can_be_made_of_names_its_variable(fresh, named, told):
    code = "import cachecore_npu_sim; cachecore_npu_sim.autoload()"

    done = fresh("-c", code, TORCH_DEVICE_BACKEND_AUTOLOAD="0", **named)

    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]


def test_build_command_builds_what_torch_then_installs(fresh, compiler):
    built = fresh("-m", "cachecore_npu_sim", "build", **AUTOLOADED)
    assert (built.returncode, built.stderr) == (0, "")
    assert built.stdout.strip().endswith(".so")

    code = "import torch, cachecore_npu_sim; cachecore_npu_sim.autoload(); print(torch.zeros(1, device='npu').device)"
    assert fresh("-c", code, **AUTOLOADED).stdout.strip() == "npu:0"


def test_build_command_says_what_is_missing(fresh, tmp_path):
    done = fresh("-m", "cachecore_npu_sim", "build", CXX="no-such-compiler", CACHECORE_NPU_SIM_CACHE=str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: there is no C++ compiler 'no-such-compiler'")


PINNED = "import cachecore_npu_sim; cachecore_npu_sim.install_native(); import torch; torch.empty(4, pin_memory=True)"


def test_page_locked_memory_can_be_left_out(fresh, compiler):
    with_it, without = fresh("-c", PINNED), fresh("-c", PINNED, CACHECORE_NPU_SIM_PINNED="0")

    assert (with_it.returncode, with_it.stderr) == (0, "")
    assert "this device has no page-locked memory (CACHECORE_NPU_SIM_PINNED=0)" in without.stderr


def test_no_compiler_is_said(fresh, tmp_path):
    code = "import cachecore_npu_sim; cachecore_npu_sim.install_native()"
    done = fresh("-c", code, CXX="no-such-compiler", CACHECORE_NPU_SIM_CACHE=str(tmp_path))

    assert "there is no C++ compiler 'no-such-compiler'" in done.stderr


@pytest.mark.parametrize(("soc", "version"), [("Ascend310P3", "202"), ("Ascend910B3", "223"), ("Strange", "-1")])
def test_device_says_which_soc_it_is(fresh, soc, version):
    code = "import cachecore_npu_sim; cachecore_npu_sim.install(); import torch;"
    code += "print(torch.npu.get_device_name(), torch.npu.get_soc_version())"

    assert fresh("-c", code, CACHECORE_NPU_SIM_SOC=soc).stdout.split() == [soc, version]
