"""What this plugin announces. Imports neither torch nor triton: probes and loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from cachecore_torch_default.announcing import (
    imported_torch,
    made_by,
    not_of_backends,
    not_on_one_device,
    not_with_host,
)

from cachecore import (
    PINNED_HOST,
    BackendInfo,
    BlockCacheCopy,
    BlockCopyInfo,
    CopyContext,
    CopySide,
    DeviceSpec,
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
    torch = imported_torch()
    if isinstance(torch, str):
        return torch
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is no CUDA build"
    from cachecore_cuda_triton.nvml import nvidia_device_count

    count = nvidia_device_count()
    if isinstance(count, str):
        return count
    if device.index is not None and device.index >= count:
        return f"there are {count} NVIDIA devices, so there is no {device}"
    return None


def probe_block_copy(src: CopySide, dst: CopySide) -> str | None:
    """One NVIDIA device on both sides."""
    if (reason := not_of_backends(("cuda-triton",), src, dst)) is not None:
        return reason
    if {src.device.type, dst.device.type} != {"cuda"}:
        return f"works on one CUDA device, not from {src.memory_kind} to {dst.memory_kind}"
    return not_on_one_device(src, dst)


def probe_swap(src: CopySide, dst: CopySide) -> str | None:
    """An NVIDIA device on one side, page-locked host memory on the other."""
    if (reason := not_of_backends(("cuda-triton",), src, dst) or not_with_host(src, dst)) is not None:
        return reason
    return None if PINNED_HOST in (src.memory_kind, dst.memory_kind) else "the host side is not page-locked"


def _build_swap(context: CopyContext) -> BlockCacheCopy:
    from cachecore_cuda_triton.swap import CudaSwap

    return CudaSwap(context, host_is_src=context.src.device.type == "cpu")


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """NVIDIA GPUs; their kernels read one packed pool for K/V, the standard layout, as fast as dense rows."""
    load = made_by("cachecore_cuda_triton.backend:CudaTritonBackend")
    return [BackendInfo("cuda-triton", ("cuda",), PRIORITY, probe, StandardLayoutPolicy, load)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """Block copy on the device, and swaps with the host."""
    copy = made_by("cachecore_cuda_triton.block_copy:FusedBlockCopy")
    return [
        BlockCopyInfo("cuda-fused", PRIORITY, probe_block_copy, copy),
        BlockCopyInfo("cuda-staged-swap", PRIORITY, probe_swap, _build_swap),
    ]
