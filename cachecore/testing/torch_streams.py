"""Streams of a torch device, with work that takes as long as a check wants."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from cachecore.testing.torch_bytes import download, upload

__all__ = ["TorchStreams"]

torch: Any = import_module("torch")  # by name: the core type-checks where no torch is installed


class TorchStreams:
    """Through the device's own torch module. Delays are matrix products, which every accelerator has."""

    _LEAST_S = 1e-3
    """A product this long needs few launches for a delay, so that no queue overflows."""

    def __init__(self, module: Any, device: Any) -> None:
        self._module = module
        self._device = device
        self._side = 128
        while (took := self._time()) < self._LEAST_S and self._side < 8192:
            self._side *= 2
        self._per_second = 1 / took

    def _time(self) -> float:
        """Seconds that one product takes."""
        self._factor = torch.ones(self._side, self._side, device=self._device)
        self._product = torch.empty_like(self._factor)
        self._multiply(2)
        self.synchronize()
        started = time.perf_counter()
        self._multiply(2)
        self.synchronize()
        return max(time.perf_counter() - started, 1e-6) / 2

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
        self._module.synchronize()


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
