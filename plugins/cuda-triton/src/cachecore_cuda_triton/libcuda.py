"""The CUDA driver library, found at run time and called through ctypes: the calls are few and plain."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from cachecore import EngineStateError

__all__ = ["check", "driver_version", "libcuda"]

_handle, _address, _size, _word = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint
_SIGNATURES = {
    "cuMemcpyAsync": (_address, _address, _size, _handle),
    "cuMemcpyHtoDAsync_v2": (_address, _handle, _size, _handle),
    "cuMemcpy2DAsync_v2": (_handle, _handle),
    "cuDriverGetVersion": (_handle,),
    "cuEventCreate": (_handle, _word),
    "cuEventRecord": (_handle, _handle),
    "cuEventQuery": (_handle,),
    "cuStreamWaitEvent": (_handle, _handle, _word),
}


@cache
def libcuda() -> ctypes.CDLL:
    """The driver, with argument types set: ctypes then takes plain numbers, which costs a third of wrapping them.

    Raises
    ------
    EngineStateError
        When the library cannot be loaded.
    """
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise EngineStateError(f"the CUDA driver library {name} cannot be loaded: {error}") from error
    for call, arguments in _SIGNATURES.items():
        getattr(driver, call).argtypes = arguments
    return driver


@cache
def driver_version() -> int:
    """As the driver counts: 13000 is CUDA 13.0."""
    found = ctypes.c_int(0)
    check(libcuda().cuDriverGetVersion(ctypes.byref(found)), "cuDriverGetVersion")
    return found.value


def check(code: int, call: str, hint: str = "") -> None:
    """Raise :class:`EngineStateError` when the driver's answer is an error."""
    if code:
        raise EngineStateError(f"{call} failed with driver error {code}{hint}", code=code)
