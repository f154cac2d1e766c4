"""Memory of the vendors' devices, through each device's own torch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from cachecore_torch_default import (
    TorchBackend,
    completion_of_current_stream,
    pinned_refusal,
    torch_device,
    upload,
)
from cachecore_torch_default.tensors import live_pools, neighbours
from torch import Tensor

from cachecore import (
    COMPLETED,
    BlockIndexError,
    CacheAllocation,
    Completion,
    DeviceSpec,
    EngineStateError,
    PlanError,
    Region,
)
from cachecore_ascend_dlinfer.policy import DlinferPolicy
from cachecore_ascend_dlinfer.vendors import ASCEND, SocFamily, Vendor, planned_soc

__all__ = ["DlinferBackend"]


class DlinferBackend(TorchBackend):
    """Contiguous pools on one vendor's devices; the host tier mirrors them in page-locked memory.

    ``torch.cuda`` is asked for nothing, as it is another vendor's, and ``torch.accelerator`` for no memory
    figures: those calls fail on torch_npu up to 2.12.
    """

    # No 8-byte words: what 64-bit index operators cost on these chips was not measured, 32-bit ones are native.
    words = MappingProxyType({4: torch.int32, 2: torch.int16, 1: torch.uint8})

    def __init__(self, vendor: Vendor = ASCEND, soc: SocFamily | None = None) -> None:
        found = soc or planned_soc()
        if isinstance(found, str):
            raise PlanError(found)
        self.vendor = vendor
        self.soc = found if vendor is ASCEND else None
        self.name = vendor.name
        self._streams: dict[tuple[torch.device, str], Any] = {}
        super().__init__(DlinferPolicy(vendor, self.soc))

    def capabilities(self) -> Mapping[str, str | None]:
        """What is known to work; the rest says why it is not claimed."""
        pinned = pinned_refusal(self.vendor.device_type)
        return {
            "pinned_host": pinned,
            "device_ids": None,
            "graph_capture": f"capture in a graph was never run on {self.vendor.title} hardware",
            "async_copy": None if pinned is None else f"copies from pageable memory wait ({pinned})",
            "byte_addressable": self._not_addressable,
        }

    @property
    def _not_addressable(self) -> str | None:
        return self.soc.not_addressable if self.soc is not None else None

    @property
    def index_dtype(self) -> torch.dtype:
        """Of block tables and slots."""
        dtype: torch.dtype = getattr(torch, self.vendor.index_dtype)
        return dtype

    def index_tensor(self, ids: Sequence[int], device: DeviceSpec) -> Tensor:
        """Block ids or slots for the vendor's kernels; converted once, on the host."""
        return upload(torch.tensor(ids, dtype=self.index_dtype), torch_device(device))

    def side_stream(self, device: torch.device, use: str) -> Any:
        """The one stream of ``device`` for ``"load"`` or ``"store"``."""
        key = device, use
        if key not in self._streams:
            self._streams[key] = torch.get_device_module(device).Stream(device=device)
        return self._streams[key]

    def zero(self, allocation: CacheAllocation[Tensor], entries: Sequence[int]) -> Completion:
        """Zero whole entries, row by row: each fill is of one dense run, as strict operators want it."""
        pools = live_pools(allocation)
        for entry in entries:
            if not 0 <= entry < allocation.num_entries:
                raise BlockIndexError(
                    f"entry {entry} is out of range; the allocation has {allocation.num_entries}",
                    block=entry,
                    limit=allocation.num_entries,
                )
        runs = [row[start:stop] for start, stop in neighbours(entries) for pool in pools for row in pool]
        for run in runs:
            run.zero_()
        return completion_of_current_stream(pools[0].device) if pools else COMPLETED

    def read(self, allocation: CacheAllocation[Tensor], pool: int, offset: int, nbytes: int) -> bytes:
        """Bytes of one pool, after all work queued on the device."""
        self._need_addresses(allocation)
        return super().read(allocation, pool, offset, nbytes)

    def write(self, allocation: CacheAllocation[Tensor], pool: int, offset: int, data: bytes) -> None:
        """Overwrite bytes of one pool; done when the call returns."""
        self._need_addresses(allocation)
        super().write(allocation, pool, offset, data)

    def regions(self, allocation: CacheAllocation[Tensor]) -> tuple[Region, ...]:
        """Address and size of every pool; none where addresses mean nothing."""
        return () if self._not_addressable else super().regions(allocation)

    def _need_addresses(self, allocation: CacheAllocation[Tensor]) -> None:
        live_pools(allocation)
        if self._not_addressable:
            raise EngineStateError(f"memory of {allocation.device} has no byte addresses: {self._not_addressable}")
