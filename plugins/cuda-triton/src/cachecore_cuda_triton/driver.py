"""The CUDA driver's batched copies, found at run time: one call for many pieces of memory.

Called through ctypes: the signatures are few, and changed between CUDA 12.8 and 13.0, which dropped
the index of the piece that failed. Source: CUDA driver API, memory management, 12.8 and 13.0.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from functools import cache
from typing import Any

from cachecore import EngineStateError

__all__ = ["ROW_OP_WORDS", "copy_pieces", "copy_rows", "row_op", "why_each"]

_ORDER_STREAM = 1
"""``CU_MEMCPY_SRC_ACCESS_ORDER_STREAM``: sources are read in stream order, safe for any source."""

_PREFER_OVERLAP = 1
"""``CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE``."""

ROW_OP_WORDS = 14
"""64-bit words of one ``CUDA_MEMCPY3D_BATCH_OP``: two operands of five, an extent of three, order and flags."""


class _Attributes(ctypes.Structure):
    """``CUmemcpyAttributes``: the access order, two locations of two ints that are left open, and flags."""

    _fields_ = (("order", ctypes.c_int), ("locations", ctypes.c_int * 4), ("flags", ctypes.c_uint))


class _Copy2D(ctypes.Structure):
    """``CUDA_MEMCPY2D``, with unified addresses on both sides."""

    _fields_ = (
        *(
            (f"{side}_{name}", kind)
            for side in ("src", "dst")
            for name, kind in (
                ("x", ctypes.c_size_t),
                ("y", ctypes.c_size_t),
                ("type", ctypes.c_int),
                ("host", ctypes.c_void_p),
                ("device", ctypes.c_uint64),
                ("array", ctypes.c_void_p),
                ("pitch", ctypes.c_size_t),
            )
        ),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


_ATTRIBUTES = _Attributes(_ORDER_STREAM, (ctypes.c_int * 4)(), _PREFER_OVERLAP)
_FIRST = ctypes.c_size_t(0)

_UNIFIED = 4
"""``CU_MEMORYTYPE_UNIFIED``."""


def copy_pieces(dst: array[int], src: array[int], nbytes: array[int], stream: int) -> None:
    """Queue pieces (``array('Q')`` of addresses and lengths) on ``stream``, which is not the default one."""
    count = len(dst)
    call, takes_failed = _batched("cuMemcpyBatchAsync")
    if call is None:
        each = _driver().cuMemcpyAsync
        for to, at, length in zip(dst, src, nbytes, strict=True):
            _check(each(_u64(to), _u64(at), _size(length), _handle(stream)), "cuMemcpyAsync", 1)
        return
    arguments: list[Any] = [_handle(part.buffer_info()[0]) for part in (dst, src, nbytes)]
    arguments += [_size(count), ctypes.byref(_ATTRIBUTES), ctypes.byref(_FIRST), _size(1)]
    if takes_failed:
        arguments.append(ctypes.byref(ctypes.c_size_t(0)))
    _check(call(*arguments, _handle(stream)), "cuMemcpyBatchAsync", count)


def copy_rows(ops: array[int], stream: int) -> None:
    """Queue copies of equally spaced rows: ``array('q')`` of 14 words an operation, as :func:`row_op` makes them."""
    count = len(ops) // ROW_OP_WORDS
    call, takes_failed = _batched("cuMemcpy3DBatchAsync")
    if call is None:
        each = _driver().cuMemcpy2DAsync_v2
        for at in range(0, len(ops), ROW_OP_WORDS):
            op = ops[at : at + ROW_OP_WORDS]
            copy = _Copy2D(src_type=_UNIFIED, src_device=op[1], src_pitch=op[2], dst_type=_UNIFIED)
            copy.dst_device, copy.dst_pitch, copy.width, copy.height = op[6], op[7], op[10], op[11]
            _check(each(ctypes.byref(copy), _handle(stream)), "cuMemcpy2DAsync", 1)
        return
    arguments: list[Any] = [_size(count), _handle(ops.buffer_info()[0])]
    if takes_failed:
        arguments.append(ctypes.byref(ctypes.c_size_t(0)))
    _check(call(*arguments, ctypes.c_ulonglong(0), _handle(stream)), "cuMemcpy3DBatchAsync", count)


def row_op(src: int, src_pitch: int, dst: int, dst_pitch: int, width: int, height: int) -> list[int]:
    """``height`` rows of ``width`` bytes as the 14 words of one operation; words 1 and 6 are the addresses."""
    pointer = 1  # CU_MEMCPY_OPERAND_TYPE_POINTER; the words after a pitch are the layer height and no location
    order_and_flags = _ORDER_STREAM | _PREFER_OVERLAP << 32
    return [pointer, src, src_pitch, 0, 0, pointer, dst, dst_pitch, 0, 0, width, height, 1, order_and_flags]


def why_each() -> str | None:
    """None when the driver copies in batches, else why it is asked piece by piece."""
    if os.environ.get("CACHECORE_CUDA_MEMCPY") == "each":
        return "batched copies are switched off by CACHECORE_CUDA_MEMCPY=each"
    if _batched("cuMemcpyBatchAsync")[0] is None:
        return "this CUDA driver has no batched copies; they came with CUDA 12.8"
    return None


@cache
def _batched(name: str) -> tuple[Any, bool]:
    """The driver's function in the signature it has, and whether that tells the piece that failed."""
    if os.environ.get("CACHECORE_CUDA_MEMCPY") == "each":
        return None, False
    driver = _driver()
    newer = getattr(driver, f"{name}_v2", None)
    return (newer, False) if newer is not None else (getattr(driver, name, None), True)


@cache
def _driver() -> ctypes.CDLL:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise EngineStateError(f"the CUDA driver library {name} cannot be loaded: {error}") from error


def _check(code: int, call: str, count: int) -> None:
    if code:
        raise EngineStateError(
            f"{call} of {count} pieces failed with driver error {code}; what was copied is unknown. "
            "CACHECORE_CUDA_MEMCPY=each copies piece by piece",
            code=code,
        )


_u64, _size, _handle = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
