"""Device addresses that stay reserved while the memory behind them comes and goes.

Source: CUDA driver API, virtual memory management (CUDA 10.2 and later); the numbers are those of ``cuda.h``.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from cachecore import AllocationError, EngineStateError
from cachecore_cuda_triton.libcuda import check, libcuda

__all__ = ["VirtualRange", "why_no_virtual_memory"]

_OUT_OF_MEMORY = 2
"""``CUDA_ERROR_OUT_OF_MEMORY``."""

_SUPPORTED, _RDMA_SUPPORTED = 102, 110
"""``CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED``, ``..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED``."""

_PINNED, _ON_DEVICE, _READ_WRITE = 1, 1, 3
"""``CU_MEM_ALLOCATION_TYPE_PINNED``, ``CU_MEM_LOCATION_TYPE_DEVICE``, ``CU_MEM_ACCESS_FLAGS_PROT_READWRITE``."""

_MINIMUM = 0
"""``CU_MEM_ALLOC_GRANULARITY_MINIMUM``."""

_CALLS = (
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemGetAllocationGranularity",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
)


class _Location(ctypes.Structure):
    """``CUmemLocation``."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``, with its ``allocFlags`` in line."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class VirtualRange:
    """One range of addresses on one device, reserved when made, in whole pages of the device.

    ``ordinal`` is the device's number in this process, which is torch's index too. The caller sees to
    it that nothing on the device uses the range when it is unmapped: the driver does not wait.
    """

    def __init__(self, nbytes: int, ordinal: int, *, driver: Any = None) -> None:
        self._driver = libcuda() if driver is None else driver
        self._properties = _Properties(type=_PINNED, location=_Location(_ON_DEVICE, ordinal))
        self._properties.rdma = bool(_attribute(self._driver, _RDMA_SUPPORTED, ordinal))
        page = ctypes.c_size_t(0)
        properties = ctypes.byref(self._properties)
        self._call("cuMemGetAllocationGranularity", ctypes.byref(page), properties, ctypes.c_int(_MINIMUM))
        self.page_nbytes = page.value
        self.nbytes = -(-nbytes // page.value) * page.value
        self.is_mapped = False
        address = ctypes.c_uint64(0)
        size, anywhere = ctypes.c_size_t(self.nbytes), ctypes.c_uint64(0)
        self._call("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), anywhere, anywhere)
        self.address = address.value

    def map(self) -> None:
        """Put memory behind the addresses; what it holds is undefined. Mapped already: nothing.

        Raises
        ------
        AllocationError
            When the device has none; the range stays as it was.
        """
        if self.is_mapped:
            return
        handle = ctypes.c_uint64(0)
        size, none = ctypes.c_size_t(self.nbytes), ctypes.c_ulonglong(0)
        code = int(self._driver.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(self._properties), none))
        if code == _OUT_OF_MEMORY:
            raise AllocationError(
                f"the driver has no {self.nbytes} bytes for device {self._properties.location.id}", nbytes=self.nbytes
            )
        check(code, f"cuMemCreate of {self.nbytes} bytes")
        try:
            self._call("cuMemMap", *self._range(), ctypes.c_size_t(0), handle, none)
        finally:
            # The mapping keeps the memory from here on, so that unmapping gives it back; without one it goes now.
            self._driver.cuMemRelease(handle)
        access = _Access(self._properties.location, _READ_WRITE)
        try:
            self._call("cuMemSetAccess", *self._range(), ctypes.byref(access), ctypes.c_size_t(1))
        except BaseException:
            self._driver.cuMemUnmap(*self._range())
            raise
        self.is_mapped = True

    def unmap(self) -> None:
        """Give the memory back and keep the addresses. Not mapped: nothing."""
        if self.is_mapped:
            self._call("cuMemUnmap", *self._range())
            self.is_mapped = False

    def close(self) -> None:
        """Give memory and addresses back. Twice is once."""
        if self.address:
            self.unmap()
            place, self.address = self._range(), 0
            self._call("cuMemAddressFree", *place)

    def _range(self) -> tuple[ctypes.c_uint64, ctypes.c_size_t]:
        return ctypes.c_uint64(self.address), ctypes.c_size_t(self.nbytes)

    def _call(self, name: str, *arguments: Any) -> None:
        check(int(getattr(self._driver, name)(*arguments)), f"{name} of {getattr(self, 'nbytes', 'unknown')} bytes")


def why_no_virtual_memory(driver: Any = None) -> str | None:
    """None when the driver and its first device manage virtual memory, else the reason why not. Makes no context."""
    if driver is None:
        return _why_not()
    missing = [call for call in _CALLS if not hasattr(driver, call)]
    if missing:
        return f"this CUDA driver has no {missing[0]}; virtual memory management came with CUDA 10.2"
    code = int(driver.cuInit(ctypes.c_uint(0)))
    if code:
        return f"the CUDA driver does not start (cuInit failed with {code})"
    if not _attribute(driver, _SUPPORTED, 0):
        return "the first CUDA device does not support virtual memory management"
    return None


@cache
def _why_not() -> str | None:
    try:
        driver = libcuda()
    except EngineStateError as error:
        return str(error)
    return why_no_virtual_memory(driver)


def _attribute(driver: Any, attribute: int, ordinal: int) -> int:
    """0 where the driver does not know the device or the attribute."""
    device, found = ctypes.c_int(0), ctypes.c_int(0)
    if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)):
        return 0
    if driver.cuDeviceGetAttribute(ctypes.byref(found), ctypes.c_int(attribute), device):
        return 0
    return found.value
