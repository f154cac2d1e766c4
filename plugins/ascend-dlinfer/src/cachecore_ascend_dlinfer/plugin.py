"""What this plugin announces. Imports no torch: probes and loaders do, when they are asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cachecore_torch_default.announcing import is_host, made_by, not_of_backends, not_on_one_device, not_with_host

from cachecore import BackendInfo, BlockCopyInfo, CopySide, DeviceSpec, LayoutPolicy, PlanError, hookimpl
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


def probe_entry_copy(src: CopySide, dst: CopySide) -> str | None:
    """One device, one layout without padding on both sides."""
    if (reason := probe_run_copy(src, dst)) is not None:
        return reason
    if src.layout != dst.layout or src.layout.padding_nbytes:
        return "moves whole entries, so both sides need one layout without padding"
    return None


def probe_run_copy(src: CopySide, dst: CopySide) -> str | None:
    """One device, any two layouts."""
    if is_host(src):
        return f"works on one device, not from {src.memory_kind} to {dst.memory_kind}"
    return not_of_backends(VENDORS, src, dst) or not_on_one_device(src, dst)


def probe_swap(src: CopySide, dst: CopySide) -> str | None:
    """The host on one side, a device on the other, in any two layouts."""
    return not_of_backends(VENDORS, src, dst) or not_with_host(src, dst)


def _info(vendor: Vendor, probe: Callable[[DeviceSpec], str | None]) -> BackendInfo:
    load = made_by("cachecore_ascend_dlinfer.backend:DlinferBackend", vendor)
    return BackendInfo(vendor.name, (vendor.device_type,), PRIORITY, probe, lambda: load_policy(vendor), load)


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """Three vendors, told apart by their probes: two of them share no device type, but MetaX's is ``cuda``."""
    return [_info(ASCEND, probe_ascend), _info(CAMB, probe_camb), _info(MACA, probe_maca)]


@hookimpl
def cachecore_register_block_copies() -> Sequence[BlockCopyInfo]:
    """Block copies on a device, and swaps with mirrors on the host."""
    entries = made_by("cachecore_ascend_dlinfer.entry_copy:EntryCopy")
    runs = made_by("cachecore_ascend_dlinfer.runs:RunCopy")
    swap = made_by("cachecore_ascend_dlinfer.swap:MirrorSwap")
    return [
        BlockCopyInfo("dlinfer-entries", PRIORITY, probe_entry_copy, entries),
        BlockCopyInfo("dlinfer-runs", PRIORITY - 10, probe_run_copy, runs),
        BlockCopyInfo("dlinfer-mirror-swap", PRIORITY, probe_swap, swap),
    ]
