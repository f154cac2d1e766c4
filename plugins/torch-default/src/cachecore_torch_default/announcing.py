"""What a torch plugin's announcement is made of, so that it takes a few lines. Imports no torch.

::

    def probe_copy(src, dst):
        return not_of_backends(("mine",), src, dst) or not_on_one_device(src, dst)

    BackendInfo("mine", ("xpu",), 100, device_refusal, MyPolicy, made_by("my_plugin.backend:MyBackend"))
    BlockCopyInfo("mine-blocks", 100, probe_copy, made_by("my_plugin.block_copy:MyCopy"))

All but :func:`made_by` answer with None, or the reason why not; joined by ``or``, the first reason is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cachecore import CopySide, DeviceSpec

__all__ = [
    "device_refusal",
    "imported_torch",
    "is_host",
    "made_by",
    "missing_part",
    "not_of_backends",
    "not_on_one_device",
    "not_with_host",
]


def made_by(name: str, *first: object) -> Callable[..., Any]:
    """A function that calls ``"module:Class"`` with ``first`` and what it is given; the module is imported then."""
    module, _, attribute = name.partition(":")
    return lambda *arguments: getattr(import_module(module), attribute)(*first, *arguments)


def imported_torch() -> Any:
    """The module torch, or as text why there is none. torch fails to import where a vendor's extension of it does."""
    if find_spec("torch") is None:
        return "unavailable: torch is not installed; install a torch build for this device"
    return _torch_or_reason()


@cache
def _torch_or_reason() -> Any:
    """Tried once: a second import in one process fails for another reason, which is none."""
    try:
        return import_module("torch")
    except (ImportError, OSError, RuntimeError) as error:
        return (
            f"unavailable: {missing_part(error)}; torch itself cannot be imported, since it loads its vendors' "
            "extensions: do what is said, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to use other devices"
        )


def missing_part(error: BaseException) -> str:
    """The library that the loader named, from whatever wraps the loader's error; else what the first cause said."""
    cause, said = error, str(error)
    while True:
        said = str(cause) or said
        if ".so" in said or (before := cause.__cause__ or cause.__context__) is None:
            return said.partition("\n")[0]
        cause = before


def device_refusal(device: DeviceSpec) -> str | None:
    """None when the installed torch can use ``device``, else why not: a probe. Makes no device context."""
    if device.type == "cpu":  # every torch has it, so that none is imported to say so
        if find_spec("torch") is None:
            return "torch is not installed; the CPU build is enough"
        return f"there is one CPU device, so there is no {device}" if device.index else None
    torch = imported_torch()
    if isinstance(torch, str):
        return torch
    try:
        module: Any = torch.get_device_module(device.type)
    except RuntimeError as error:
        why = (
            "" if str(error).startswith("Expected one of") else f": {error}"
        )  # torch's list of all types tells nothing
        return f"torch {torch.__version__} has no device type {device.type!r}{why}"
    if not module.is_available():
        return f"torch {torch.__version__} finds no {device.type} device (torch.{device.type}.is_available() is False)"
    count = module.device_count() if hasattr(module, "device_count") else 1
    if device.index is not None and device.index >= count:
        return f"torch finds {count} {device.type} devices, so there is no {device}"
    return None


def is_host(side: CopySide) -> bool:
    """Whether a side's memory is the host's."""
    return side.device.type == "cpu"


def not_of_backends(names: Collection[str], *sides: CopySide) -> str | None:
    """Memory of other backends than ``names``, on any side."""
    for side in sides:
        if side.backend not in names:
            return f"works on memory of {' and '.join(map(repr, names))}, not of backend {side.backend!r}"
    return None


def not_on_one_device(src: CopySide, dst: CopySide) -> str | None:
    """Two devices; the host on both sides is one."""
    if src.device != dst.device:
        return f"works on one device, not from {src.device} to {dst.device}"
    return None


def not_with_host(src: CopySide, dst: CopySide) -> str | None:
    """Anything but the host on one side and a device on the other."""
    if is_host(src) == is_host(dst):
        return f"moves between the host and a device, not from {src.memory_kind} to {dst.memory_kind}"
    return None
