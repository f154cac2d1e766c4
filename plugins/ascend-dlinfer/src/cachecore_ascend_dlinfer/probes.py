"""Whether a vendor's device is here, and if not, which library is missing. Imports torch only when asked."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cachecore import DeviceSpec
from cachecore_ascend_dlinfer.vendors import SOC_VARIABLE, VENDORS, Vendor, family_of, planned_soc

__all__ = ["probe_ascend", "probe_camb", "probe_maca"]


def probe_ascend(device: DeviceSpec) -> str | None:
    """None on an Ascend chip of the family that plans are made for. Makes no context."""
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
    return None


def probe_camb(device: DeviceSpec) -> str | None:
    """None on a Cambricon device."""
    return _vendor_reason(VENDORS["camb"], device)


def probe_maca(device: DeviceSpec) -> str | None:
    """None where torch is MetaX's: its device type is ``cuda`` too, so the build is what tells."""
    torch = _torch()
    if isinstance(torch, str):
        return torch
    if getattr(torch.version, "maca", None) is None and "metax" not in torch.__version__.lower():
        return f"torch {torch.__version__} is not MetaX's build, so cuda is another vendor's device here"
    return _device_reason(torch, VENDORS["maca"], device)


def _vendor_reason(vendor: Vendor, device: DeviceSpec) -> str | None:
    torch = _torch()
    if isinstance(torch, str):
        return torch
    if not _has_module(torch, vendor.device_type) and (reason := _import_library(vendor)) is not None:
        return reason
    return _device_reason(torch, vendor, device)


def _torch() -> Any:
    """The torch module, or why there is none. With torch_npu but without CANN, importing torch itself fails."""
    if find_spec("torch") is None:
        return "unavailable: torch is not installed"
    try:
        return import_module("torch")
    except (ImportError, OSError, RuntimeError) as error:
        return (
            f"unavailable: {_missing(error)}; torch itself cannot be imported, since it loads its vendors' extensions: "
            "install what is missing, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use other devices"
        )


def _has_module(torch: Any, device_type: str) -> bool:
    try:
        torch.get_device_module(device_type)
    except RuntimeError:
        return False
    return True


def _import_library(vendor: Vendor) -> str | None:
    library = str(vendor.library)
    if find_spec(library) is None:
        extra = "; install cachecore-ascend-dlinfer[ascend], and CANN" if library == "torch_npu" else ""
        return f"unavailable: {library} is not installed{extra or f'; it comes with the SDK of {vendor.title}'}"
    try:
        import_module(library)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"unavailable: {_missing(error)}; {library} is installed, but not what it needs"
    return None


def _missing(error: BaseException) -> str:
    """The library that the loader named, from whatever wraps the loader's error."""
    cause: BaseException | None = error
    while cause is not None:
        if ".so" in str(cause):
            return str(cause).partition("\n")[0]
        cause = cause.__cause__ or cause.__context__
    return str(error).partition("\n")[0]


def _device_reason(torch: Any, vendor: Vendor, device: DeviceSpec) -> str | None:
    name = vendor.device_type
    if not _has_module(torch, name):
        return f"torch {torch.__version__} has no device type {name!r}, although {vendor.library} is imported"
    module = torch.get_device_module(name)
    if not module.is_available():
        return f"torch finds no {name} device (torch.{name}.is_available() is False): is the driver loaded?"
    count = module.device_count()
    if device.index is not None and device.index >= count:
        return f"torch finds {count} {name} devices, so there is no {device}"
    return None
