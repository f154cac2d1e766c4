"""Torch tensors as the kit sees them. Imported only once a backend's views are tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any

from cachecore.device import DeviceSpec
from cachecore.testing.arrays import Streams
from cachecore.testing.faults import Skipped
from cachecore.testing.torch_bytes import download, synchronize, upload
from cachecore.testing.torch_streams import TorchStreams

__all__ = ["TorchArrays"]

torch: Any = import_module("torch")  # by name: the core type-checks where no torch is installed

_GRAPHS = ("CUDAGraph", "NPUGraph", "XPUGraph", "MUSAGraph", "MLUGraph")


class TorchArrays:
    """Tensors of any torch device, through the device's own module."""

    name = "torch"

    def shape(self, view: Any) -> tuple[int, ...]:
        """Elements."""
        return tuple(view.shape)

    def dtype(self, view: Any) -> str | None:
        """As torch names it."""
        return str(view.dtype).removeprefix("torch.")

    def itemsize(self, view: Any) -> int:
        """Bytes an element."""
        return int(view.dtype.itemsize)

    def strides(self, view: Any) -> tuple[int, ...]:
        """Bytes a step."""
        return tuple(step * view.dtype.itemsize for step in view.stride())

    def put(self, view: Any, entry: int, data: bytes) -> None:
        """Overwrite one entry through the view, as a kernel would."""
        target = view[entry]
        target.copy_(upload(data, target))
        synchronize(view.device)

    def get(self, view: Any, entry: int) -> bytes:
        """The dense bytes of one entry."""
        synchronize(view.device)
        return download(view[entry])

    def modes(self) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
        """Inside inference mode and outside."""
        return {
            "outside inference mode": lambda: torch.inference_mode(False),
            "inside inference mode": lambda: torch.inference_mode(True),
        }

    def nbytes(self, buffer: Any) -> int:
        """Bytes of a buffer."""
        return int(buffer.numel() * buffer.element_size())

    def pinned(self, buffer: Any) -> bool | None:
        """Whether torch knows it as page-locked."""
        return bool(buffer.is_pinned()) if buffer.numel() else None

    def buffer(self, nbytes: int, device: DeviceSpec) -> Any:
        """Pages not given yet on the host; plain memory on a device."""
        if device.type == "cpu":
            return torch.frombuffer(mmap(-1, nbytes, flags=MAP_PRIVATE | MAP_ANONYMOUS), dtype=torch.uint8)
        return torch.empty(nbytes, dtype=torch.uint8, device=str(device))

    def peek(self, buffer: Any, offset: int, nbytes: int) -> bytes:
        """Bytes of a buffer."""
        synchronize(buffer.device)
        return download(buffer[offset : offset + nbytes])

    def device_ids(self, pairs: Sequence[tuple[int, int]], device: DeviceSpec) -> Any:
        """``int64[2, n]`` on the device."""
        rows = [[src for src, _ in pairs], [dst for _, dst in pairs]]
        ids = torch.tensor(rows, dtype=torch.int64).to(str(device))
        synchronize(ids.device)
        return ids

    def set_ids(self, ids: Any, pairs: Sequence[tuple[int, int]]) -> None:
        """Overwrite ids in place."""
        ids.copy_(torch.tensor([[src for src, _ in pairs], [dst for _, dst in pairs]], dtype=torch.int64))
        synchronize(ids.device)

    def release(self, device: DeviceSpec) -> None:
        """Empty the caching allocator."""
        module: Any = torch.get_device_module(device.type)
        if hasattr(module, "empty_cache"):
            module.empty_cache()

    def streams(self, device: DeviceSpec) -> Streams:
        """The device module's streams."""
        module: Any = torch.get_device_module(device.type)
        if device.type == "cpu" or not hasattr(module, "Stream") or not hasattr(module, "current_stream"):
            raise Skipped(f"torch.{device.type} has no streams")
        return TorchStreams(module, torch.device(str(device)))

    def capture(self, device: DeviceSpec, work: Callable[[], None]) -> Callable[[], None]:
        """Warm up on a side stream, capture, and replay."""
        module: Any = torch.get_device_module(device.type)
        graphs = [getattr(module, name) for name in _GRAPHS if hasattr(module, name)]
        if not graphs or not hasattr(module, "graph"):
            raise Skipped(f"the kit knows no graph class of torch.{device.type}")
        target = torch.device(str(device))
        side = module.Stream(device=target)
        with module.stream(side):
            work()
        synchronize(target)
        graph = graphs[0]()
        with module.graph(graph, stream=side):  # a stream of its own would be the current device's
            work()

        def replay() -> None:
            graph.replay()
            synchronize(target)

        return replay

    def about(self, device: DeviceSpec) -> dict[str, str]:
        """Torch's version and the device's name."""
        told = {"torch": str(torch.__version__)}
        module: Any = torch.get_device_module(device.type)
        if device.type != "cpu" and hasattr(module, "get_device_name"):
            told["device_name"] = str(module.get_device_name(device.index or 0))
        return told
