"""What is announced, and the reasons for not serving."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from cachecore_cuda_triton import plugin as cuda_plugin
from cachecore_torch_default import plugin as torch_plugin

from cachecore import DeviceSpec, PluginRegistry
from cachecore.copying import CopySide
from cachecore.layout_kinds import packed_layout
from cachecore.ranking import PluginRecord

CUDA, HOST = DeviceSpec.parse("cuda:0"), DeviceSpec.parse("cpu")


def side(backend: str = "cuda-triton", kind: str = "cuda", device: DeviceSpec = CUDA) -> CopySide:
    return CopySide(backend, kind, device, packed_layout([]))


def test_a_torch_without_cuda_is_no_nvidia_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch for AMD, or of a vendor whose device is called cuda: no version of NVIDIA's CUDA
    monkeypatch.setattr(torch.version, "cuda", None)

    assert "no CUDA build" in (cuda_plugin.probe(CUDA) or "")


def test_a_cuda_build_without_nvidias_driver_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    from cachecore_cuda_triton import nvml

    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(nvml.ctypes, "CDLL", no_library)

    assert "no NVIDIA driver" in (cuda_plugin.probe(CUDA) or "")


def test_an_index_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from cachecore_cuda_triton import nvml

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(nvml, "nvidia_device_count", lambda: 1)

    assert cuda_plugin.probe(CUDA) is None
    assert "cuda:1" in (cuda_plugin.probe(DeviceSpec.parse("cuda:1")) or "")


def test_it_outranks_the_generic_backend_where_both_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = PluginRegistry(environ={})
    registry.register(torch_plugin, PluginRecord("torch-default", "cachecore-torch-default", "0"))
    registry.register(cuda_plugin, PluginRecord("cuda-triton", "cachecore-cuda-triton", "0"))

    assert registry.plan_backend("cuda").info.name == "cuda-triton"


@pytest.mark.parametrize(
    ("src", "dst", "told"),
    [
        (side(), side(), None),
        (side("torch-default"), side(), "torch-default"),
        (side(kind="host:pinned", device=HOST), side(), "one CUDA device"),
        (side(), side(device=DeviceSpec.parse("cuda:1")), "cuda:1"),
    ],
)
def test_block_copy_serves_one_nvidia_device(src: CopySide, dst: CopySide, told: str | None) -> None:
    reason = cuda_plugin.probe_block_copy(src, dst)

    assert reason is None if told is None else told in (reason or "")


@pytest.mark.parametrize(
    ("src", "dst", "told"),
    [
        (side(), side(kind="host:pinned", device=HOST), None),
        (side(kind="host:pinned", device=HOST), side(), None),
        (side(), side(kind="host", device=HOST), "not page-locked"),
        (side(), side(), "the host"),
        (side(), side("bytes", "host:pinned", HOST), "bytes"),
    ],
)
def test_swap_needs_page_locked_memory(src: CopySide, dst: CopySide, told: str | None) -> None:
    reason = cuda_plugin.probe_swap(src, dst)

    assert reason is None if told is None else told in (reason or "")


def test_announcing_imports_no_array_library() -> None:
    code = (
        "import sys\nfrom cachecore_cuda_triton import plugin\n"
        "plugin.cachecore_register_backends()[0].load_policy()\nplugin.cachecore_register_block_copies()\n"
        "print([name for name in ('torch', 'triton', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
