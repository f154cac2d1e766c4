"""Memory of the Python device: host buffers that torch takes for the device's, through DLPack.

A capsule of device type kDLExtDev (12, torch's spare type) becomes a tensor with a real storage, an
address and views; its deleter keeps the account.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch
from torch import Tensor

__all__ = ["MEMORY", "DeviceMemory"]

_EXTENSION_DEVICE = 12
_UINT = 1


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("dl_tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _DELETER))

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class DeviceMemory:
    """Bytes taken and given back, up to a capacity (``CACHECORE_NPU_SIM_MEMORY`` bytes, 16 GiB of virtual memory)."""

    ALIGNMENT = 512
    """As device allocators align."""

    def __init__(self) -> None:
        capacity = os.environ.get("CACHECORE_NPU_SIM_MEMORY", str(16 << 30))
        if not capacity.isdecimal():
            raise ValueError(
                f"CACHECORE_NPU_SIM_MEMORY is {capacity!r}; expected a number of bytes, such as 1073741824"
            )
        self.capacity = int(capacity)
        self.allocated = 0
        self.used = False
        self.peak = 0
        self._live: dict[int, tuple[Any, ...]] = {}
        self._deleter = _DELETER(self._release)

    def allocate(self, nbytes: int) -> Tensor:
        """``uint8[nbytes]`` on the device; its content is undefined.

        Raises
        ------
        torch.OutOfMemoryError
            When more than the capacity would be taken.
        """
        if self.allocated + nbytes > self.capacity:
            raise torch.OutOfMemoryError(
                f"simulated device out of memory: {nbytes} bytes wanted, {self.allocated} of {self.capacity} in use"
            )
        buffer = torch.empty(nbytes + self.ALIGNMENT, dtype=torch.uint8)
        managed = _Managed()
        shape, strides = (ctypes.c_int64 * 1)(nbytes), (ctypes.c_int64 * 1)(1)
        described = managed.dl_tensor
        described.data = buffer.data_ptr() + -buffer.data_ptr() % self.ALIGNMENT if nbytes else None
        described.device = _Device(_EXTENSION_DEVICE, 0)
        described.ndim = 1
        described.dtype = _DataType(_UINT, 8, 1)
        described.shape, described.strides, described.byte_offset = shape, strides, 0
        managed.deleter = self._deleter
        address = ctypes.addressof(managed)
        self._live[address] = (managed, shape, strides, buffer, nbytes)
        self.allocated += nbytes
        self.used = True
        self.peak = max(self.peak, self.allocated)
        return torch.utils.dlpack.from_dlpack(_new_capsule(address, b"dltensor", None))

    def _release(self, managed: Any) -> None:
        entry = self._live.pop(ctypes.addressof(managed.contents), None)
        if entry is not None:
            self.allocated -= entry[-1]

    def reset_peak(self) -> None:
        """Count the peak from now on."""
        self.peak = self.allocated


MEMORY = DeviceMemory()
"""The one device's."""
