"""Whether a vendor's device is here, and if not, which library is missing. Imports torch only when asked."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cachecore_torch_default.announcing import device_refusal, imported_torch, missing_part

from cachecore import DeviceSpec
from cachecore_ascend_dlinfer.vendors import SOC_VARIABLE, VENDORS, Vendor, family_of, planned_soc

__all__ = ["probe_ascend", "probe_camb", "probe_maca"]


def probe_ascend(device: DeviceSpec) -> str | None:
    """None on an Ascend chip of the family that plans are made for, if engines can be had on it. Makes no context."""
    soc = planned_soc()
    if isinstance(soc, str):
        return soc
    if (reason := _vendor_reason(VENDORS["ascend"], device)) is not None:
        return reason
    import torch

    module: Any = torch.get_device_module("npu")
    if not hasattr(module, "get_soc_version"):
        return None
    version = int(module.get_soc_version())
    family = family_of(version)
    if family is None:
        return (
            f"this chip's number is {version}, which this release does not know: nobody has run it there; "
            "use cachecore-torch-default, or report the chip"
        )
    if family is not soc:
        return (
            f"this chip is an Ascend {family.name}, but plans are made for {soc.name}; "
            f"set {SOC_VARIABLE}={family.name} before planning"
        )
    return family.no_engine


def probe_camb(device: DeviceSpec) -> str | None:
    """None on a Cambricon device."""
    return _vendor_reason(VENDORS["camb"], device)


def probe_maca(device: DeviceSpec) -> str | None:
    """None where torch is MetaX's: its device type is ``cuda`` too, so the build is what tells."""
    torch = imported_torch()
    if isinstance(torch, str):
        return torch
    if getattr(torch.version, "maca", None) is None and "metax" not in torch.__version__.lower():
        return f"torch {torch.__version__} is not MetaX's build, so cuda is another vendor's device here"
    return device_refusal(device)


def _vendor_reason(vendor: Vendor, device: DeviceSpec) -> str | None:
    torch = imported_torch()
    if isinstance(torch, str):
        return torch
    if device_refusal(DeviceSpec(vendor.device_type)) is not None and (reason := _import_library(vendor)) is not None:
        return reason
    return device_refusal(device)


def _import_library(vendor: Vendor) -> str | None:
    """Import what makes torch know the device type; simulated devices need none."""
    library = str(vendor.library)
    if find_spec(library) is None:
        source = f"it comes with the SDK of {vendor.title}"
        if library == "torch_npu":
            checkout = "from a checkout: ./plugins/ascend-dlinfer[ascend]"
            source = f"install cachecore-ascend-dlinfer[ascend] ({checkout}), and CANN"
        return f"unavailable: {library} is not installed; {source}"
    try:
        import_module(library)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"unavailable: {missing_part(error)}; {library} is installed, but not what it needs"
    return None
