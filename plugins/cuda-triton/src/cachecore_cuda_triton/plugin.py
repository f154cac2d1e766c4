"""What this plugin announces. Imports neither torch nor triton: probes and loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from cachecore import (
    PINNED_HOST,
    BackendInfo,
    BlockCacheCopy,
    BlockCopyInfo,
    CacheBackend,
    CopyContext,
    CopySide,
    DeviceSpec,
    LayoutPolicy,
    StandardLayoutPolicy,
    hookimpl,
)

PRIORITY = 100
"""Written for this device."""


def probe(device: DeviceSpec) -> str | None:
    """None on an NVIDIA GPU, else why not. Other vendors' torch calls its device ``cuda`` too. No context is made."""
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            return f"{name} is not installed; install a CUDA build of torch, which brings triton"
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is no CUDA build"
    from cachecore_cuda_triton.nvml import nvidia_device_count

    count = nvidia_device_count()
    if isinstance(count, str):
        return count
    if device.index is not None and device.index >= count:
        return f"there are {count} NVIDIA devices, so there is no {device}"
    return None


def load_policy() -> LayoutPolicy:
    """The standard layouts: one packed pool for K/V, which the kernels read as fast as dense rows."""
    return StandardLayoutPolicy()


def load() -> CacheBackend[Any]:
    """Import torch and triton, and make the backend."""
    from cachecore_cuda_triton.backend import CudaTritonBackend

    return CudaTritonBackend()


def probe_block_copy(src: CopySide, dst: CopySide) -> str | None:
    """One NVIDIA device on both sides."""
    for side in (src, dst):
        if side.backend != "cuda-triton":
            return f"works on memory of backend 'cuda-triton', not of {side.backend!r}"
        if side.device.type != "cuda":
            return f"works on one CUDA device, not from {src.memory_kind} to {dst.memory_kind}"
    if src.device != dst.device:
        return f"works on one device, not from {src.device} to {dst.device}"
    return None


def probe_swap(src: CopySide, dst: CopySide) -> str | None:
    """An NVIDIA device on one side, page-locked host memory on the other."""
    for side in (src, dst):
        if side.backend != "cuda-triton":
            return f"works on memory of backend 'cuda-triton', not of {side.backend!r}"
    if {src.device.type, dst.device.type} != {"cuda", "cpu"}:
        return f"moves between a CUDA device and the host, not from {src.memory_kind} to {dst.memory_kind}"
    if PINNED_HOST not in (src.memory_kind, dst.memory_kind):
        return "the host side is not page-locked"
    return None


def _build_block_copy(context: CopyContext) -> BlockCacheCopy:
    from cachecore_cuda_triton.block_copy import FusedBlockCopy

    return FusedBlockCopy(context)


def _build_swap(context: CopyContext) -> BlockCacheCopy:
    from cachecore_cuda_triton.swap import CudaSwap

    return CudaSwap(context, host_is_src=context.src.device.type == "cpu")


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """NVIDIA GPUs."""
    return [BackendInfo("cuda-triton", ("cuda",), PRIORITY, probe, load_policy, load)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """Block copy on the device, and swaps with the host."""
    return [
        BlockCopyInfo("cuda-fused", PRIORITY, probe_block_copy, _build_block_copy),
        BlockCopyInfo("cuda-staged-swap", PRIORITY, probe_swap, _build_swap),
    ]
