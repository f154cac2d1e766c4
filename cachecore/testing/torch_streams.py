"""Streams of a torch device, with work that takes as long as a check wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from cachecore.testing.torch_bytes import download, synchronize, upload

__all__ = ["TorchStreams"]

torch: Any = import_module("torch")  # by name: the core type-checks where no torch is installed


class TorchStreams:
    """Through the device's own torch module. Delays are matrix products, which every accelerator has."""

    _MEASURED_S = 0.02
    """Long enough to be measured; a delay is then some tens of launches, and no queue overflows."""

    def __init__(self, module: Any, device: Any) -> None:
        self._module = module
        self._device = device
        self._count, self._side = 4, 128
        # The least of several: what a first call or a busy machine adds would make every delay too short.
        while (took := min(self._time() for _ in range(3))) < self._MEASURED_S:
            if self._side < 4096:
                self._side *= 2
            else:
                self._count *= 2
        self._per_second = self._count / took

    def _time(self) -> float:
        """Seconds that the products take."""
        self._factor = torch.ones(self._side, self._side, device=self._device)
        self._product = torch.empty_like(self._factor)
        self.synchronize()
        started = time.perf_counter()
        self._multiply(self._count)
        self.synchronize()
        return time.perf_counter() - started

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._factor, self._factor, out=self._product)

    def new(self) -> Any:
        """A stream."""
        return self._module.Stream(device=self._device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make it the current one."""
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def delay(self, seconds: float) -> None:
        """Queue matrix products for about so long."""
        self._multiply(max(1, int(seconds * self._per_second)))

    def writer(self, view: Any, entry: int, data: bytes) -> Callable[[], None]:
        """Upload now, write on the device later."""
        target = view[entry]
        ready = upload(data, target)
        self.synchronize()
        return lambda: target.copy_(ready)

    def reader(self, view: Any, entry: int) -> _Reader:
        """Allocate now, read on the device later."""
        source = view[entry]
        reader = _Reader(source, torch.zeros(tuple(source.shape), dtype=source.dtype, device=self._device))
        self.synchronize()
        return reader

    def synchronize(self) -> None:
        """Wait for the device."""
        synchronize(self._device)


class _Reader:
    """A read into memory of its own."""

    def __init__(self, source: Any, target: Any) -> None:
        self._source = source
        self._target = target

    def queue(self) -> None:
        """Read on the current stream."""
        self._target.copy_(self._source)

    def result(self) -> bytes:
        """What was read."""
        return download(self._target)
