"""What this plugin announces. Imports no torch: probes and loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    PlanError,
    hookimpl,
)
from cachecore_ascend_dlinfer.policy import DlinferPolicy
from cachecore_ascend_dlinfer.probes import probe_ascend, probe_camb, probe_maca
from cachecore_ascend_dlinfer.vendors import ASCEND, CAMB, MACA, VENDORS, Vendor, planned_soc

PRIORITY = 100
"""Written for these devices."""


def load_policy(vendor: Vendor) -> LayoutPolicy:
    """The vendor's policy; on Ascend for the chip family that the environment names."""
    soc = planned_soc()
    if isinstance(soc, str):
        raise PlanError(soc)
    return DlinferPolicy(vendor, soc)


def load(vendor: Vendor) -> CacheBackend[Any]:
    """Import torch and make the backend."""
    from cachecore_ascend_dlinfer.backend import DlinferBackend

    return DlinferBackend(vendor)


def probe_entry_copy(src: CopySide, dst: CopySide) -> str | None:
    """One device, one layout without padding on both sides."""
    if (reason := probe_run_copy(src, dst)) is not None:
        return reason
    if src.layout != dst.layout or src.layout.padding_nbytes:
        return "moves whole entries, so both sides need one layout without padding"
    return None


def probe_run_copy(src: CopySide, dst: CopySide) -> str | None:
    """One device, any two layouts."""
    if (reason := _not_ours(src, dst)) is not None:
        return reason
    if "cpu" in (src.device.type, dst.device.type) or src.device != dst.device:
        return f"works on one device, not from {src.memory_kind} to {dst.memory_kind}"
    return None


def probe_swap(src: CopySide, dst: CopySide) -> str | None:
    """The host on one side, a device on the other, in any two layouts."""
    if (reason := _not_ours(src, dst)) is not None:
        return reason
    if (src.device.type == "cpu") == (dst.device.type == "cpu"):
        return f"moves between the host and a device, not from {src.memory_kind} to {dst.memory_kind}"
    return None


def _not_ours(*sides: CopySide) -> str | None:
    for side in sides:
        if side.backend not in VENDORS:
            return f"works on memory of backends {', '.join(VENDORS)}, not of {side.backend!r}"
    return None


def _build_entry_copy(context: CopyContext) -> BlockCacheCopy:
    from cachecore_ascend_dlinfer.entry_copy import EntryCopy

    return EntryCopy(context)


def _build_run_copy(context: CopyContext) -> BlockCacheCopy:
    from cachecore_ascend_dlinfer.runs import RunCopy

    return RunCopy(context)


def _build_swap(context: CopyContext) -> BlockCacheCopy:
    from cachecore_ascend_dlinfer.swap import MirrorSwap

    return MirrorSwap(context)


def _info(vendor: Vendor, probe: Callable[[DeviceSpec], str | None]) -> BackendInfo:
    return BackendInfo(
        vendor.name, (vendor.device_type,), PRIORITY, probe, lambda: load_policy(vendor), lambda: load(vendor)
    )


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """Three vendors, told apart by their probes: two of them share no device type, but MetaX's is ``cuda``."""
    return [_info(ASCEND, probe_ascend), _info(CAMB, probe_camb), _info(MACA, probe_maca)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """Block copies on a device, and swaps with mirrors on the host."""
    return [
        BlockCopyInfo("dlinfer-entries", PRIORITY, probe_entry_copy, _build_entry_copy),
        BlockCopyInfo("dlinfer-runs", PRIORITY - 10, probe_run_copy, _build_run_copy),
        BlockCopyInfo("dlinfer-mirror-swap", PRIORITY, probe_swap, _build_swap),
    ]
