"""What this plugin announces. Imports no torch: probes and loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore import BackendInfo, BlockCopyInfo, CopySide, StandardLayoutPolicy, hookimpl
from cachecore_torch_default.announcing import device_refusal, made_by, not_on_one_device, not_with_host

PRIORITY = 10
"""Below every plugin that was written for a device."""

probe = device_refusal
"""Any device that torch can use."""


def probe_gather_scatter(src: CopySide, dst: CopySide) -> str | None:
    """One device, or the host on both sides."""
    return _no_tensors(src, dst) or not_on_one_device(src, dst)


def probe_staged(src: CopySide, dst: CopySide) -> str | None:
    """The host on one side, a device on the other."""
    return _no_tensors(src, dst) or not_with_host(src, dst)


def _no_tensors(*sides: CopySide) -> str | None:
    for side in sides:
        if side.device.type == "null" or side.backend == "bytes":
            return f"backend {side.backend!r} on {side.device} holds no tensors"
    return None


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """Any device that torch knows; the standard layouts suit every kernel that takes strides."""
    load = made_by("cachecore_torch_default.backend:TorchBackend")
    return [BackendInfo("torch-default", ("*",), PRIORITY, probe, StandardLayoutPolicy, load)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """The generic ways: on one device, and between it and the host."""
    copy = made_by("cachecore_torch_default.block_copy:GatherScatterCopy")
    swap = made_by("cachecore_torch_default.swap:StagedSwap")
    return [
        BlockCopyInfo("torch-gather-scatter", PRIORITY, probe_gather_scatter, copy),
        BlockCopyInfo("torch-staged-swap", PRIORITY, probe_staged, swap),
    ]
