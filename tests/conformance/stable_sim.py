"""The simulated device with memory that keeps its addresses over a sleep, and with graphs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from conformance.sim import SimArrays, SimBackend, SimCopy, Work, sim_subject
from stable_bytes import StableBytes

from cachecore import BlockCacheCopy, CopyContext, DeviceSpec
from cachecore.testing import Subject


class Graph:
    """A stream that keeps what is queued, to be queued again."""

    def __init__(self) -> None:
        self.work: list[Work] = []

    def queue(self, work: Work) -> None:
        self.work.append(work)

    def record(self) -> threading.Event:
        event = threading.Event()
        event.set()
        return event


class GraphArrays(SimArrays):
    """Byte tensors with streams and graphs."""

    def capture(self, device: DeviceSpec, work: Callable[[], None]) -> Callable[[], None]:
        graph: Any = Graph()
        with self.sim.on(graph):
            work()

        def replay() -> None:
            for one in graph.work:
                self.sim.current.queue(one)
            self.sim.synchronize()

        return replay


class StableSim(StableBytes, SimBackend):
    """Releases once all streams are done."""

    def capabilities(self):
        return {**super().capabilities(), "graph_capture": None}

    def release(self, allocation):
        self.sim.synchronize()
        super().release(allocation)


def stable_subject(
    backend: Callable[[], StableSim] = StableSim, copy: Callable[[CopyContext], BlockCacheCopy] = SimCopy
) -> Subject:
    """The simulated device with stable addresses."""
    subject = sim_subject(backend, copy)
    made: Any = subject.info.load()
    return replace(subject, arrays=GraphArrays(made.sim))
