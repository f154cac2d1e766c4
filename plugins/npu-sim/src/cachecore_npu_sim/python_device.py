"""The Python device: one device, everything done when the call returns, streams and events for bookkeeping only."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from types import ModuleType

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from cachecore_npu_sim.memory import MEMORY
from cachecore_npu_sim.python_kernels import register_kernels
from cachecore_npu_sim.soc import device_name, soc_version

__all__ = ["make_device"]

_numbers = itertools.count(1)


class Stream:
    """A queue whose work is done at once."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.stream_id = next(_numbers)
        self.device = torch.device(torch._C._get_privateuse1_backend_name(), 0)

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether all work is done."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event``, or a new one."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)


class Event:
    """A mark that is always reached."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self.stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Remember the stream."""
        self.stream = stream or _Current.stream

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether the mark is reached."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: Event) -> float:
        """No time passes on a synchronous device."""
        return 0.0


class _Current:
    stream: Stream
    default: Stream


@contextlib.contextmanager
def _stream(stream: Stream | None) -> Iterator[Stream | None]:
    before, _Current.stream = _Current.stream, stream or _Current.stream
    try:
        yield stream
    finally:
        _Current.stream = before


_kept: list[torch.library.Library] = []


def make_device(name: str) -> ModuleType:
    """Register device type ``name`` and its module ``torch.<name>``."""
    module = ModuleType(f"torch.{name}")
    functions = {
        "Stream": Stream,
        "Event": Event,
        "stream": _stream,
        "current_stream": lambda device=None: _Current.stream,
        "default_stream": lambda device=None: _Current.default,
        "is_available": lambda: True,
        "is_initialized": lambda: MEMORY.used,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed_all": lambda seed: None,
        "mem_get_info": lambda device=None: (MEMORY.capacity - MEMORY.allocated, MEMORY.capacity),
        "memory_allocated": lambda device=None: MEMORY.allocated,
        "max_memory_allocated": lambda device=None: MEMORY.peak,
        "reset_peak_memory_stats": lambda device=None: MEMORY.reset_peak(),
        "get_device_name": device_name,
        "get_soc_version": soc_version,
    }
    for attribute, function in functions.items():
        setattr(module, attribute, function)
    _setup_privateuseone_for_python_backend(name, backend_module=module)
    _Current.default = _Current.stream = Stream()
    _kept.extend(register_kernels())
    return module
