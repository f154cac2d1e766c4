"""What this plugin announces. Imports no torch: loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from cachecore import (
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
    """None wherever torch is installed; it is not imported, since a cold import may outlast a probe's limit."""
    if find_spec("torch") is None:
        return "torch is not installed; the CPU build is enough"
    if device.index:
        return f"there is one CPU device, so there is no {device}"
    return None


def load_policy() -> LayoutPolicy:
    """The standard layouts, so that a plan for the CPU moves anywhere."""
    return StandardLayoutPolicy()


def load() -> CacheBackend[Any]:
    """Import torch and make the backend."""
    from cachecore_cpu.backend import CpuBackend

    return CpuBackend()


def probe_copy(src: CopySide, dst: CopySide) -> str | None:
    """Host memory on both sides, in any two layouts."""
    for side in (src, dst):
        if side.device.type != "cpu":
            return f"copies within host memory, not {src.device} to {dst.device}"
        if side.backend == "bytes":
            return "backend 'bytes' holds no tensors"
    return None


def _build(context: CopyContext) -> BlockCacheCopy:
    from cachecore_cpu.block_copy import CpuBlockCopy

    return CpuBlockCopy(context)


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """The CPU."""
    return [BackendInfo("cpu", ("cpu",), PRIORITY, probe, load_policy, load)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """Block copies and swaps within host memory."""
    return [BlockCopyInfo("cpu-memory-speed", PRIORITY, probe_copy, _build)]
