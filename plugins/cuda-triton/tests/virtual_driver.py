"""A CUDA driver's virtual memory, played in host memory: addresses are real, and misuse is refused as a driver does."""

# ruff: noqa: N802  # the calls are named as the driver names them

from __future__ import annotations

import ctypes
import mmap
from typing import Any

PAGE = 1 << 16
"""Bytes of a page; a real device has 2 MiB."""

INVALID, OUT_OF_MEMORY = 1, 2


class VirtualDriver:
    """Bytes read as 0xCD when they were just mapped and as 0xDD while nothing is mapped.

    ``fail`` names a call that fails, ``calls`` counts them; ``capacity`` is in bytes.
    """

    def __init__(self, capacity: int = 1 << 24) -> None:
        self.capacity = capacity
        self.attributes = {102: 1, 110: 1}
        self.fail: str | None = None
        self.calls: list[str] = []
        self.reserved: dict[int, tuple[int, Any]] = {}
        self.handles: dict[int, int] = {}
        self.mapped: dict[int, tuple[int, int]] = {}
        self.accessible: set[int] = set()
        self.rdma: list[int] = []
        self._next = 1

    @property
    def taken(self) -> int:
        """Bytes that a handle or a mapping keeps."""
        kept = dict(self.handles)
        kept.update(self.mapped.values())
        return sum(kept.values())

    def _begin(self, name: str) -> int:
        self.calls.append(name)
        return 700 if self.fail == name else 0

    def cuInit(self, flags: Any) -> int:
        """Starts."""
        return self._begin("cuInit")

    def cuDeviceGet(self, out: Any, ordinal: Any) -> int:
        """One device."""
        out._obj.value = ordinal.value
        return 0 if ordinal.value == 0 else 101

    def cuDeviceGetAttribute(self, out: Any, attribute: Any, device: Any) -> int:
        """What :attr:`attributes` say."""
        out._obj.value = self.attributes[attribute.value]
        return 0

    def cuMemGetAllocationGranularity(self, out: Any, properties: Any, option: Any) -> int:
        """One page."""
        assert (properties._obj.type, properties._obj.location.type, option.value) == (1, 1, 0)
        out._obj.value = PAGE
        return self._begin("cuMemGetAllocationGranularity")

    def cuMemAddressReserve(self, out: Any, size: Any, alignment: Any, where: Any, flags: Any) -> int:
        """Pages of the host that nobody else has."""
        code = self._begin("cuMemAddressReserve")
        if code or size.value % PAGE or not size.value:
            return code or INVALID
        pages = mmap.mmap(-1, size.value + PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        address = -(-start // PAGE) * PAGE
        self.reserved[address] = (size.value, pages)
        ctypes.memset(address, 0xDD, size.value)
        out._obj.value = address
        return 0

    def cuMemCreate(self, out: Any, size: Any, properties: Any, flags: Any) -> int:
        """Counts against the capacity."""
        code = self._begin("cuMemCreate")
        if code:
            return code
        if self.taken + size.value > self.capacity:
            return OUT_OF_MEMORY
        self.rdma.append(properties._obj.rdma)
        self.handles[self._next] = size.value
        out._obj.value = self._next
        self._next += 1
        return 0

    def cuMemMap(self, address: Any, size: Any, offset: Any, handle: Any, flags: Any) -> int:
        """All of a reservation, once."""
        code = self._begin("cuMemMap")
        known = self.reserved.get(address.value, (0, None))[0]
        if code or known != size.value or address.value in self.mapped or handle.value not in self.handles:
            return code or INVALID
        self.mapped[address.value] = (handle.value, size.value)
        return 0

    def cuMemSetAccess(self, address: Any, size: Any, access: Any, count: Any) -> int:
        """What is mapped may be touched from here on."""
        code = self._begin("cuMemSetAccess")
        given = access._obj.location.type, access._obj.flags, count.value
        if code or address.value not in self.mapped or given != (1, 3, 1):
            return code or INVALID
        self.accessible.add(address.value)
        ctypes.memset(address.value, 0xCD, size.value)
        return 0

    def cuMemUnmap(self, address: Any, size: Any) -> int:
        """The bytes are gone, the addresses stay."""
        code = self._begin("cuMemUnmap")
        if code or self.mapped.get(address.value, (0, 0))[1] != size.value:
            return code or INVALID
        del self.mapped[address.value]
        self.accessible.discard(address.value)
        ctypes.memset(address.value, 0xDD, size.value)
        return 0

    def cuMemRelease(self, handle: Any) -> int:
        """A mapping keeps its memory."""
        return self._begin("cuMemRelease") or (0 if self.handles.pop(handle.value, None) else INVALID)

    def cuMemAddressFree(self, address: Any, size: Any) -> int:
        """Only what is not mapped."""
        code = self._begin("cuMemAddressFree")
        if code or address.value in self.mapped or self.reserved.get(address.value, (0, None))[0] != size.value:
            return code or INVALID
        del self.reserved[address.value]
        return 0
