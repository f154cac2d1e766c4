"""Memory and views of any torch device, through the device's own torch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from cachecore import (
    COMPLETED,
    HOST,
    PINNED_HOST,
    AllocationError,
    BlockIndexError,
    CacheAllocation,
    CacheBackend,
    CacheLayout,
    CacheTensorSpec,
    Completion,
    DeviceSpec,
    EngineStateError,
    LayoutError,
    LayoutPolicy,
    MemoryInfo,
    Region,
    StandardLayoutPolicy,
)
from cachecore_torch_default.completion import completion_of_current_stream, has_streams
from cachecore_torch_default.memory import check_fits, device_memory, host_pages, memory_refused, return_cached
from cachecore_torch_default.pinned import pinned_refusal
from cachecore_torch_default.tensors import byte_range, bytes_of, live_pools, neighbours, synchronize, typed_view

__all__ = ["TorchBackend", "torch_device"]


def torch_device(device: DeviceSpec) -> torch.device:
    """The torch device of ``device``, with the current index filled in where it names none.

    Raises
    ------
    EngineStateError
        When this torch has no such device type.
    """
    if device.type == "cpu":
        return torch.device("cpu")
    try:
        module = torch.get_device_module(device.type)
        index = device.index
        if index is None:
            index = int(module.current_device()) if hasattr(module, "current_device") else 0
        return torch.device(device.type, index)
    except RuntimeError as error:
        raise EngineStateError(
            f"torch {torch.__version__} cannot use device {str(device)!r} ({error}); "
            "install the vendor's torch plugin or name another device",
            device=str(device),
        ) from error


class TorchBackend(CacheBackend[Tensor]):
    """Pools are ``uint8`` tensors; views are typed tensors that alias them.

    ``words`` are the dtypes that copies move, by size: integers, since indexed copies of 8-bit
    floats do not exist. Subclasses override what their device does better: ``policy``, ``words``,
    :meth:`take` (how bytes are taken) and :meth:`capabilities`.
    """

    name = "torch-default"
    words: Mapping[int, torch.dtype] = MappingProxyType(
        {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
    )

    def __init__(self, policy: LayoutPolicy | None = None) -> None:
        self.policy = policy if policy is not None else StandardLayoutPolicy()

    def allocate(
        self, layout: CacheLayout, num_entries: int, device: DeviceSpec, *, pinned: bool = False
    ) -> CacheAllocation[Tensor]:
        """Take zeroed memory, one buffer a pool, outside inference mode so that any mode may write it."""
        target = torch_device(device)
        layout.reserved_nbytes(num_entries)  # refuses a count that is none, before torch is asked
        kind = device.type
        if target.type == "cpu":
            kind = PINNED_HOST if pinned and self.capabilities().get("pinned_host") is None else HOST
            check_fits(layout, num_entries, target)
        buffers: list[Tensor] = []
        for index, _ in enumerate(layout.pools):
            try:
                with torch.inference_mode(False):
                    buffer = self.take(layout.buffer_nbytes(index, num_entries), target, pinned=kind == PINNED_HOST)
            except (RuntimeError, MemoryError, OSError) as error:  # torch's allocators and mmap raise any of them
                buffers.clear()
                return_cached(target)
                why = str(error).partition("\n")[0]
                raise memory_refused(layout, index, num_entries, target, why, pinned=kind == PINNED_HOST) from error
            buffers.append(buffer)
        pools = []
        with torch.inference_mode(False):
            for spec, buffer in zip(layout.pools, buffers, strict=True):
                start = -buffer.data_ptr() % spec.base_alignment if buffer.numel() else 0
                if start + spec.entry_nbytes * num_entries > buffer.numel():
                    raise AllocationError(
                        f"torch gave {target} address {buffer.data_ptr():#x} for a pool to align to "
                        f"{spec.base_alignment} bytes; override take() for a device that aligns to less than 512",
                        device=str(target),
                    )
                pools.append(_pool(buffer, start, spec.outer, num_entries, spec.inner))
        return CacheAllocation(layout, num_entries, device, kind, tuple(buffers), tuple(pools))

    def take(self, nbytes: int, device: torch.device, *, pinned: bool) -> Tensor:
        """Return ``nbytes`` zeroed bytes as ``uint8[nbytes]``, page-locked if ``pinned``.

        Aligned to :data:`cachecore.layout.NATIVE_ALIGNMENT` without taking more. Called outside inference
        mode; a RuntimeError, MemoryError or OSError becomes an AllocationError.
        """
        if device.type == "cpu" and not pinned:
            return host_pages(nbytes)
        return torch.zeros(nbytes, dtype=torch.uint8, device=device, pin_memory=pinned)

    def adopt(self, buffer: Tensor, layout: CacheLayout, num_entries: int) -> CacheAllocation[Tensor]:
        """Use ``buffer``, any contiguous tensor; pools follow one another without gaps, so align it yourself."""
        if not isinstance(buffer, Tensor):
            raise TypeError(f"a torch backend adopts a tensor, not {type(buffer).__name__}")
        if not buffer.is_contiguous():
            raise LayoutError(f"the buffer to adopt has strides {buffer.stride()}; expected a contiguous tensor")
        nbytes, needed = buffer.numel() * buffer.element_size(), layout.nbytes(num_entries)
        if nbytes < needed:
            raise AllocationError(
                f"a buffer of {nbytes} bytes on {buffer.device} cannot hold {num_entries} entries of layout "
                f"{layout.kind!r}, which take {needed} bytes",
                needed_nbytes=needed,
                free_nbytes=nbytes,
                device=str(buffer.device),
            )
        start, pools = 0, []
        with torch.inference_mode(False):
            flat = buffer.detach().view(-1).view(torch.uint8)
            for spec in layout.pools:
                pools.append(_pool(flat, start, spec.outer, num_entries, spec.inner))
                start += spec.entry_nbytes * num_entries
        kind = buffer.device.type
        if kind == "cpu":
            kind = PINNED_HOST if buffer.is_pinned() else HOST
        device = DeviceSpec.parse(buffer.device)
        return CacheAllocation(layout, num_entries, device, kind, (flat,), tuple(pools), owned=False)

    def free(self, allocation: CacheAllocation[Tensor]) -> None:
        """Drop the memory once all work queued on the device is done. Twice is once."""
        if allocation.freed:
            return
        if allocation.owned and allocation.pools:
            synchronize(allocation.pools[0].device)  # side streams may still use what torch would hand out again
        allocation.freed = True
        allocation.pools = ()
        allocation.buffers = ()

    def release(self, allocation: CacheAllocation[Tensor]) -> None:
        """Free, and let the device have what torch's caching allocator would keep."""
        device = allocation.pools[0].device if allocation.pools else None
        super().release(allocation)
        if device is not None:
            return_cached(device)

    def memory(self, device: DeviceSpec) -> MemoryInfo:
        """Free and total bytes of ``device``."""
        return device_memory(torch_device(device))

    def capabilities(self) -> Mapping[str, str | None]:
        """What torch can do with the accelerator it finds."""
        # torch 2.6 has no check_available=, and raises where there is none.
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        none = "torch finds no accelerator"
        pinned = none if accelerator is None else pinned_refusal(accelerator.type)
        return {
            "pinned_host": pinned,
            "device_ids": None,
            "graph_capture": none if accelerator is None else _no_graphs(accelerator),
            "async_copy": none if accelerator is None else _waits(accelerator, pinned),
            "byte_addressable": None,
        }

    def view(self, allocation: CacheAllocation[Tensor], spec_index: int, spec: CacheTensorSpec) -> Tensor | None:
        """``(rows, entries, [pages,] *shape)``; the pages axis is there when an entry holds several."""
        return typed_view(allocation, spec_index, spec)

    def row_view(self, allocation: CacheAllocation[Tensor], spec_index: int, spec: CacheTensorSpec, row: int) -> Tensor:
        """``(entries, [pages,] *shape)``."""
        view = typed_view(allocation, spec_index, spec, row)
        if view is None:  # only the view of all rows may be missing
            raise LayoutError(f"cache {spec.name!r} has no row {row}", cache=spec.name, row=row)
        return view

    def zero(self, allocation: CacheAllocation[Tensor], entries: Sequence[int]) -> Completion:
        """Zero whole entries, neighbours in one fill."""
        pools = live_pools(allocation)
        for entry in entries:
            if not 0 <= entry < allocation.num_entries:
                raise BlockIndexError(
                    f"entry {entry} is out of range; the allocation has {allocation.num_entries}",
                    block=entry,
                    limit=allocation.num_entries,
                )
        for start, stop in neighbours(entries):
            for pool in pools:
                pool[:, start:stop].zero_()
        return completion_of_current_stream(pools[0].device) if pools else COMPLETED

    def read(self, allocation: CacheAllocation[Tensor], pool: int, offset: int, nbytes: int) -> bytes:
        """Bytes of one pool, after all work queued on the device."""
        part = byte_range(allocation, pool, offset, nbytes)
        synchronize(part.device)
        return bytes_of(part.cpu())

    def write(self, allocation: CacheAllocation[Tensor], pool: int, offset: int, data: bytes) -> None:
        """Overwrite bytes of one pool; done when the call returns."""
        part = byte_range(allocation, pool, offset, len(data))
        if data:
            part.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            synchronize(part.device)

    def regions(self, allocation: CacheAllocation[Tensor]) -> tuple[Region, ...]:
        """Address and size of every pool that has bytes."""
        pools = enumerate(live_pools(allocation))
        return tuple(Region(index, pool.data_ptr(), pool.numel()) for index, pool in pools if pool.numel())


_GRAPH_CLASSES = ("CUDAGraph", "XPUGraph", "NPUGraph", "MUSAGraph")


def _no_graphs(device: torch.device) -> str | None:
    module = torch.get_device_module(device)
    return None if any(hasattr(module, name) for name in _GRAPH_CLASSES) else f"torch.{device.type} has no graphs"


def _waits(device: torch.device, pinned: str | None) -> str | None:
    if not has_streams(device):
        return f"torch.{device.type} has no streams"
    return None if pinned is None else f"copies from and to pageable memory wait ({pinned})"


def _pool(buffer: Tensor, start: int, outer: int, num_entries: int, inner: int) -> Tensor:
    return buffer[start : start + outer * num_entries * inner].view(outer, num_entries, inner)
