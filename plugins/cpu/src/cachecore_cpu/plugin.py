"""What this plugin announces. Imports no torch: loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore_torch_default.announcing import device_refusal, is_host, made_by

from cachecore import BackendInfo, BlockCopyInfo, CopySide, StandardLayoutPolicy, hookimpl

PRIORITY = 100
"""Written for this device."""


def probe_copy(src: CopySide, dst: CopySide) -> str | None:
    """Host memory on both sides, in any two layouts."""
    for side in (src, dst):
        if not is_host(side):
            return f"copies within host memory, not {src.device} to {dst.device}"
        if side.backend == "bytes":
            return "backend 'bytes' holds no tensors"
    return None


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """The CPU, with the standard layouts, so that a plan for it moves anywhere."""
    load = made_by("cachecore_cpu.backend:CpuBackend")
    return [BackendInfo("cpu", ("cpu",), PRIORITY, device_refusal, StandardLayoutPolicy, load)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """Block copies and swaps within host memory."""
    return [BlockCopyInfo("cpu-memory-speed", PRIORITY, probe_copy, made_by("cachecore_cpu.block_copy:CpuBlockCopy"))]
