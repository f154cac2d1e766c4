"""What this plugin announces. Imports no torch: probes and loaders do, when they are asked."""

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

PRIORITY = 10
"""Below every plugin that was written for a device."""


def probe(device: DeviceSpec) -> str | None:
    """None when the installed torch can use ``device``, else why not."""
    if find_spec("torch") is None:
        return "torch is not installed; install a torch build for this device"
    if device.type == "cpu":
        return None  # every torch has it; a cold import of torch may take longer than a probe is given
    import torch

    try:
        module: Any = torch.get_device_module(device.type)
    except RuntimeError as error:
        return f"torch {torch.__version__} has no device type {device.type!r}: {error}"
    if not module.is_available():
        return f"torch {torch.__version__} finds no {device.type} device (torch.{device.type}.is_available() is False)"
    count = module.device_count() if hasattr(module, "device_count") else 1
    if device.index is not None and device.index >= count:
        return f"torch finds {count} {device.type} devices, so there is no {device}"
    return None


def load_policy() -> LayoutPolicy:
    """The standard layouts suit every kernel that takes strides."""
    return StandardLayoutPolicy()


def load() -> CacheBackend[Any]:
    """Import torch and make the backend."""
    from cachecore_torch_default.backend import TorchBackend

    return TorchBackend()


def is_host(side: CopySide) -> bool:
    """Whether a side's memory is the host's."""
    return side.device.type == "cpu"


def probe_gather_scatter(src: CopySide, dst: CopySide) -> str | None:
    """One device, or the host on both sides."""
    if (reason := _no_tensors(src, dst)) is not None:
        return reason
    if src.device != dst.device:
        return f"works on one device, not from {src.device} to {dst.device}"
    return None


def probe_staged(src: CopySide, dst: CopySide) -> str | None:
    """The host on one side, a device on the other."""
    if (reason := _no_tensors(src, dst)) is not None:
        return reason
    if is_host(src) == is_host(dst):
        return f"moves between the host and a device, not from {src.device} to {dst.device}"
    return None


def _no_tensors(*sides: CopySide) -> str | None:
    for side in sides:
        if side.device.type == "null" or side.backend == "bytes":
            return f"backend {side.backend!r} on {side.device} holds no tensors"
    return None


def _build_gather_scatter(context: CopyContext) -> BlockCacheCopy:
    from cachecore_torch_default.block_copy import GatherScatterCopy

    return GatherScatterCopy(context)


def _build_staged(context: CopyContext) -> BlockCacheCopy:
    from cachecore_torch_default.swap import StagedSwap

    return StagedSwap(context, host_is_src=context.src.device.type == "cpu")


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """Any device that torch knows."""
    return [BackendInfo("torch-default", ("*",), PRIORITY, probe, load_policy, load)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """The generic ways: on one device, and between it and the host."""
    return [
        BlockCopyInfo("torch-gather-scatter", PRIORITY, probe_gather_scatter, _build_gather_scatter),
        BlockCopyInfo("torch-staged-swap", PRIORITY, probe_staged, _build_staged),
    ]
