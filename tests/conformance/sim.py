"""An asynchronous device in pure Python: streams are threads with a queue, memory is :class:`ByteBackend`'s.

Everything that a real accelerator gets wrong can be got wrong here, so that the order checks mean something.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from cachecore import (
    BackendInfo,
    BlockCacheCopy,
    BlockCopyInfo,
    ByteBackend,
    Completion,
    CopyContext,
    DeviceSpec,
    StandardLayoutPolicy,
)
from cachecore.ranking import PluginRecord
from cachecore.reference import ByteTensor
from cachecore.testing import ByteArrays, Subject

Work = Callable[[], object]


class Stream:
    """Runs what is queued, in order, in a thread of its own."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self.failures: list[BaseException] = []
        threading.Thread(target=self._run, name="sim-stream", daemon=True).start()

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # told when somebody synchronises
                self.failures.append(error)

    def queue(self, work: Work) -> None:
        self._queue.put(work)

    def record(self) -> threading.Event:
        """An event that is set when everything queued so far is done."""
        event = threading.Event()
        self.queue(event.set)
        return event

    def wait_event(self, event: threading.Event) -> None:
        """Later work waits for ``event``; the caller does not."""
        self.queue(event.wait)

    def stop(self) -> None:
        self._queue.put(None)


class SimDevice:
    """Streams, and which of them is current in each thread."""

    def __init__(self) -> None:
        self.default = Stream()
        self.streams = [self.default]
        self._local = threading.local()

    def new(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    @property
    def current(self) -> Stream:
        return getattr(self._local, "stream", self.default)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    def synchronize(self) -> None:
        for event in [stream.record() for stream in self.streams]:
            event.wait()
        for stream in self.streams:
            if stream.failures:
                raise stream.failures.pop()

    def stop(self) -> None:
        for stream in self.streams:
            stream.stop()


class SimCompletion:
    """An event of a stream."""

    def __init__(self, device: SimDevice, event: threading.Event) -> None:
        self.device = device
        self.event = event

    def wait(self, stream: Any = None) -> None:
        (stream or self.device.current).wait_event(self.event)

    def synchronize(self) -> None:
        self.event.wait()

    def done(self) -> bool:
        return self.event.is_set()


class SimBackend(ByteBackend):
    """Bytes that are written when the stream comes to it."""

    name = "sim"

    def __init__(self) -> None:
        super().__init__()
        self.sim = SimDevice()
        self.swap_streams = {"out": self.sim.new(), "in": self.sim.new()}

    def capabilities(self):
        return {
            "pinned_host": "plain bytearrays cannot be page-locked",
            "device_ids": None,
            "graph_capture": "there are no graphs",
            "async_copy": None,
            "byte_addressable": None,
        }

    def zero(self, allocation, entries):
        listed = list(entries)
        self.sim.current.queue(lambda: ByteBackend.zero(self, allocation, listed))
        return SimCompletion(self.sim, self.sim.current.record())

    def read(self, allocation, pool, offset, nbytes):
        self.sim.synchronize()
        return super().read(allocation, pool, offset, nbytes)

    def write(self, allocation, pool, offset, data):
        self.sim.synchronize()
        super().write(allocation, pool, offset, data)

    def free(self, allocation):
        self.sim.synchronize()
        super().free(allocation)


class SimCopy(BlockCacheCopy):
    """Device copies on the caller's stream, swaps on streams of their own."""

    path = "sim"

    def __init__(self, context: CopyContext) -> None:
        self.backend: SimBackend = context.dst_backend
        self.sim = self.backend.sim
        self.context = context
        self.src = [pool.pool for pool in context.src.pools]  # alive until the last queued copy has run
        self.dst = [pool.pool for pool in context.dst.pools]
        self.direction = "in" if context.src.device.type == "cpu" else "out"
        self.is_swap = context.src.device != context.dst.device

    def move(self, pairs: Sequence[tuple[int, int]]) -> None:
        for src, dst in pairs:
            for one in self.context.segments:
                for page in range(one.num_pages):
                    at = one.src_start + src * one.src_block_stride + page * one.src_page_stride
                    to = one.dst_start + dst * one.dst_block_stride + page * one.dst_page_stride
                    self.dst[one.dst_pool][to : to + one.nbytes] = self.src[one.src_pool][at : at + one.nbytes]

    def stream(self) -> Stream:
        """Where the bytes move, ordered after what the caller's stream has queued."""
        if not self.is_swap:
            return self.sim.current
        stream = self.backend.swap_streams[self.direction]
        stream.wait_event(self.sim.current.record())
        return stream

    def __call__(self, pairs, after=()) -> Completion:
        listed, stream = list(pairs), self.stream()
        for completion in after:
            completion.wait(stream)
        stream.queue(lambda: self.move(listed))
        return SimCompletion(self.sim, stream.record())

    def on_device(self, ids: Any) -> None:
        self.sim.current.queue(lambda: self.move(self.real_pairs(ids)))

    def real_pairs(self, ids: Any) -> list[tuple[int, int]]:
        listed = zip(*ids.tolist(), strict=True)
        return [(src, dst) for src, dst in listed if src >= 0 and dst >= 0]


class SimArrays(ByteArrays):
    """Byte tensors with streams."""

    def __init__(self, sim: SimDevice) -> None:
        self.sim = sim

    def put(self, view: ByteTensor, entry: int, data: bytes) -> None:
        self.sim.synchronize()
        super().put(view, entry, data)

    def get(self, view: ByteTensor, entry: int) -> bytes:
        self.sim.synchronize()
        return super().get(view, entry)

    def streams(self, device: DeviceSpec) -> SimStreams:
        return SimStreams(self.sim)


class SimStreams:
    """The kit's way to keep streams busy."""

    def __init__(self, sim: SimDevice) -> None:
        self.sim = sim
        self.new, self.on, self.synchronize = sim.new, sim.on, sim.synchronize

    def delay(self, seconds: float) -> None:
        self.sim.current.queue(lambda: time.sleep(seconds))

    def writer(self, view: ByteTensor, entry: int, data: bytes) -> Callable[[], None]:
        target = ByteArrays().entry(view, entry)
        return lambda: self.sim.current.queue(lambda: target.frombytes(data))

    def reader(self, view: ByteTensor, entry: int) -> SimReader:
        return SimReader(self.sim, ByteArrays().entry(view, entry))


class SimReader:
    """What the stream read when it came to it."""

    def __init__(self, sim: SimDevice, source: ByteTensor) -> None:
        self.sim, self.source, self.read = sim, source, b""

    def queue(self) -> None:
        self.sim.current.queue(self._read)

    def _read(self) -> None:
        self.read = self.source.tobytes()

    def result(self) -> bytes:
        return self.read


def sim_subject(
    backend: Callable[[], SimBackend] = SimBackend, copy: Callable[[CopyContext], BlockCacheCopy] = SimCopy
) -> Subject:
    """The simulated device, with a backend or a copy of the caller's."""
    made = backend()
    info = BackendInfo("sim", ("sim",), 100, lambda device: None, StandardLayoutPolicy, lambda: made)
    return Subject(
        info,
        PluginRecord("sim", "cachecore-sim", "1"),
        DeviceSpec("sim"),
        (BlockCopyInfo("sim", 100, lambda src, dst: None, copy),),
        arrays=SimArrays(made.sim),
    )
