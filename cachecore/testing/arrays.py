"""What the kit must know of an array library: how to look at a view, and how to put bytes through it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from mmap import mmap
from typing import Any, Protocol

from cachecore.device import DeviceSpec
from cachecore.reference import ByteTensor
from cachecore.testing.faults import Skipped

__all__ = ["ArrayAdapter", "ByteArrays", "Reader", "Streams", "arrays_of"]


class Reader(Protocol):
    """A read that was made ready before, so that queueing it allocates nothing."""

    def queue(self) -> None:
        """Queue the read on the current stream."""

    def result(self) -> bytes:
        """What was read, once the stream is done."""


class Streams(Protocol):
    """Queues of a device. What is queued runs later; what is made ready is ready when the call returns."""

    def new(self) -> Any:
        """A stream."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make it the current one."""

    def delay(self, seconds: float) -> None:
        """Queue work that takes about so long on the current stream."""

    def writer(self, view: Any, entry: int, data: bytes) -> Callable[[], None]:
        """Make a write of one entry ready; calling it queues the write on the current stream."""

    def reader(self, view: Any, entry: int) -> Reader:
        """Make a read of one entry ready."""

    def synchronize(self) -> None:
        """Block until all streams are done."""


class ArrayAdapter(Protocol):
    """How the kit sees one array library."""

    name: str

    def shape(self, view: Any) -> tuple[int, ...]:
        """Elements."""

    def dtype(self, view: Any) -> str | None:
        """The storage dtype's name; None where arrays have item sizes only."""

    def itemsize(self, view: Any) -> int:
        """Bytes an element."""

    def strides(self, view: Any) -> tuple[int, ...]:
        """Bytes a step, for each axis."""

    def put(self, view: Any, entry: int, data: bytes) -> None:
        """Overwrite ``view[entry]`` in place, with dense bytes."""

    def get(self, view: Any, entry: int) -> bytes:
        """The dense bytes of ``view[entry]``."""

    def modes(self) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """Ways to run code that the library tells apart, such as inference mode."""

    def nbytes(self, buffer: Any) -> int:
        """Bytes of a buffer or a pool."""

    def pinned(self, buffer: Any) -> bool | None:
        """Whether it is page-locked; None for unknown."""

    def buffer(self, nbytes: int, device: DeviceSpec) -> Any:
        """Memory to adopt, not touched where that is possible."""

    def peek(self, buffer: Any, offset: int, nbytes: int) -> bytes:
        """Bytes of a buffer of :meth:`buffer`."""

    def device_ids(self, pairs: Sequence[tuple[int, int]], device: DeviceSpec) -> Any:
        """Device-resident ``int64[2, n]``."""

    def set_ids(self, ids: Any, pairs: Sequence[tuple[int, int]]) -> None:
        """Overwrite ids in place."""

    def release(self, device: DeviceSpec) -> None:
        """Give back what the library keeps of freed memory."""

    def streams(self, device: DeviceSpec) -> Streams:
        """The device's streams; raises :class:`Skipped` where there are none."""

    def capture(self, device: DeviceSpec, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` in a graph; the returned function replays it and waits."""

    def about(self, device: DeviceSpec) -> dict[str, str]:
        """Versions and names for the report."""


class ByteArrays:
    """:class:`~cachecore.reference.ByteTensor`: no dtypes, no streams, no device."""

    name = "bytes"

    def shape(self, view: ByteTensor) -> tuple[int, ...]:
        """Elements."""
        return tuple(view.shape)

    def dtype(self, view: ByteTensor) -> str | None:
        """A byte tensor knows its item size alone."""
        return None

    def itemsize(self, view: ByteTensor) -> int:
        """Bytes an element."""
        return view.itemsize

    def strides(self, view: ByteTensor) -> tuple[int, ...]:
        """Bytes a step."""
        return tuple(view.strides)

    def put(self, view: ByteTensor, entry: int, data: bytes) -> None:
        """Overwrite one entry."""
        self.entry(view, entry).frombytes(data)

    def get(self, view: ByteTensor, entry: int) -> bytes:
        """The dense bytes of one entry."""
        return self.entry(view, entry).tobytes()

    def entry(self, view: ByteTensor, entry: int) -> ByteTensor:
        """``view[entry]``."""
        return ByteTensor(
            view.pool, view.start + entry * view.strides[0], view.shape[1:], view.strides[1:], view.itemsize
        )

    def modes(self) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """One."""
        return {"": nullcontext}

    def nbytes(self, buffer: Any) -> int:
        """Bytes of a buffer or a pool."""
        return memoryview(buffer.pool if isinstance(buffer, ByteTensor) else buffer).nbytes

    def pinned(self, buffer: Any) -> bool | None:
        """Python's memory never is."""
        return False

    def buffer(self, nbytes: int, device: DeviceSpec) -> Any:
        """Pages that the operating system has not given yet."""
        return mmap(-1, nbytes)

    def peek(self, buffer: Any, offset: int, nbytes: int) -> bytes:
        """Bytes of a buffer."""
        return bytes(memoryview(buffer)[offset : offset + nbytes])

    def device_ids(self, pairs: Sequence[tuple[int, int]], device: DeviceSpec) -> Any:
        """``int64[2, n]`` as a memoryview."""
        ids = array("q", [src for src, _ in pairs] + [dst for _, dst in pairs])
        return memoryview(ids).cast("B").cast("q", [2, len(pairs)])

    def set_ids(self, ids: Any, pairs: Sequence[tuple[int, int]]) -> None:
        """Overwrite ids in place."""
        for at, (src, dst) in enumerate(pairs):
            ids[0, at], ids[1, at] = src, dst

    def release(self, device: DeviceSpec) -> None:
        """Nothing is kept."""

    def streams(self, device: DeviceSpec) -> Streams:
        """There are none."""
        raise Skipped("byte tensors have no streams")

    def capture(self, device: DeviceSpec, work: Callable[[], None]) -> Callable[[], None]:
        """There are no graphs."""
        raise Skipped("byte tensors have no graphs")

    def about(self, device: DeviceSpec) -> dict[str, str]:
        """Nothing to tell."""
        return {}


def arrays_of(array: Any) -> ArrayAdapter:
    """The adapter of an array; :class:`Skipped` when the kit has none for its library."""
    if isinstance(array, ByteTensor):
        return ByteArrays()
    if any(base.__module__.partition(".")[0] == "torch" for base in type(array).__mro__):
        from cachecore.testing.torch_arrays import TorchArrays

        return TorchArrays()
    raise Skipped(
        f"views are {type(array).__module__}.{type(array).__qualname__}; the kit looks into torch tensors and byte "
        "tensors. Give your own adapter to cachecore.testing.Subject(arrays=...)"
    )
