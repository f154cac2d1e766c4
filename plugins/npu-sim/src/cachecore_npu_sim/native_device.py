"""The C++ device: asynchronous streams, events, page-locked memory, several devices.

Read from the environment when it is loaded, each with the prefix ``CACHECORE_NPU_SIM_``: ``DEVICES``
(2), ``MEMORY`` (bytes a device), ``PROTECT`` (1: the host faults on a device address), ``STRICT``
(1: operands must be contiguous), ``PINNED`` (0: no page-locked memory), ``DELAY_US`` (before every
queued task), ``BATCH_OP`` (1: with the address-table copy of vllm-ascend), ``SOC``.
"""

from __future__ import annotations

import os
from types import ModuleType, TracebackType
from typing import Any

import torch

from cachecore_npu_sim.native_build import built_library
from cachecore_npu_sim.soc import device_name, soc_version

__all__ = ["make_device"]


_NUMBERS = {
    "DEVICES": (2, 1, 64),
    "MEMORY": (16 << 30, 1, 1 << 62),
    "DELAY_US": (0, 0, 60_000_000),
    **dict.fromkeys(("PROTECT", "PINNED", "BATCH_OP"), (1, 0, 1)),
    "STRICT": (0, 0, 1),
}
"""Number where nothing is said, lowest and highest. The library reads them too, and takes a misspelt one for 0."""


def _numbers() -> dict[str, int]:
    found = {}
    for name, (default, lowest, highest) in _NUMBERS.items():
        text = os.environ.get(f"CACHECORE_NPU_SIM_{name}", str(default))
        number = int(text) if text.isascii() and text.isdecimal() else -1
        if not lowest <= number <= highest:
            raise ValueError(f"CACHECORE_NPU_SIM_{name} is {text!r}; expected a whole number, {lowest} to {highest}")
        found[name] = number
    return found


def _device(device: Any = None) -> torch.device:
    """The device with an index, the current one where none is named."""
    name = torch._C._get_privateuse1_backend_name()
    if isinstance(device, int):
        return torch.device(name, device)
    if device is not None and torch.device(device).index is not None:
        return torch.device(device)
    return torch.device(name, torch.accelerator.current_device_index())


class Stream(torch.Stream):
    """A queue with a thread of its own."""

    def __new__(cls, device: Any = None, priority: int = 0, **more: Any) -> Stream:
        """Make a new queue on ``device``."""
        return super().__new__(cls, device=_device(device), priority=priority, **more)


class Event(torch.Event):
    """A mark in a queue."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        """Make an event that is not recorded yet."""
        return super().__new__(cls, device=_device(), enable_timing=enable_timing)


class _StreamContext:
    """Makes a stream the current one; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._before: torch.Stream | None = None

    def __enter__(self) -> torch.Stream | None:
        if self._stream is not None:
            self._before = torch.accelerator.current_stream(self._stream.device)
            torch.accelerator.set_stream(self._stream)
        return self._stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            torch.accelerator.set_stream(self._before)


def make_device(name: str) -> ModuleType:
    """Load the library and register device type ``name`` and its module ``torch.<name>``.

    Raises
    ------
    ValueError
        When a variable of the environment is no number that the device can have.
    """
    num_devices = _numbers()["DEVICES"]
    torch.ops.load_library(built_library())
    torch.utils.rename_privateuse1_backend(name)
    on, accelerator = _device, torch.accelerator
    functions = {
        "Stream": Stream,
        "Event": Event,
        "stream": _StreamContext,
        "is_available": lambda: True,
        "is_initialized": torch.ops.cachecore_npu_sim.initialized,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,
        "manual_seed": lambda seed: None,
        "device_count": lambda: num_devices,
        "current_device": accelerator.current_device_index,
        "set_device": lambda device: accelerator.set_device_index(on(device).index),
        "current_stream": lambda device=None: accelerator.current_stream(on(device)),
        "set_stream": accelerator.set_stream,
        "synchronize": lambda device=None: accelerator.synchronize(on(device)),
        "empty_cache": accelerator.empty_cache,
        "mem_get_info": lambda device=None: accelerator.get_memory_info(on(device)),
        "memory_allocated": lambda device=None: accelerator.memory_allocated(on(device)),
        "max_memory_allocated": lambda device=None: accelerator.max_memory_allocated(on(device)),
        "reset_peak_memory_stats": lambda device=None: accelerator.reset_peak_memory_stats(on(device)),
        "get_device_name": device_name,
        "get_soc_version": soc_version,
    }
    module = ModuleType(f"torch.{name}")
    for attribute, function in functions.items():
        setattr(module, attribute, function)
    torch._register_device_module(name, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    return module
