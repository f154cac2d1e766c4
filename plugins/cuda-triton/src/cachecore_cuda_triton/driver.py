"""The CUDA driver's batched copies, found at run time: one call for many pieces of memory.

Called through ctypes: the signatures are few, and changed between CUDA 12.8 and 13.0, which dropped
the index of the piece that failed. Source: CUDA driver API, memory management, 12.8 and 13.0.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from functools import cache
from typing import Any

from cachecore_cuda_triton.libcuda import check, libcuda

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
_ATTRIBUTES_AT, _FIRST_AT = ctypes.addressof(_ATTRIBUTES), ctypes.addressof(_FIRST)

_UNIFIED = 4
"""``CU_MEMORYTYPE_UNIFIED``."""


def copy_pieces(dst: array[int], src: array[int], nbytes: array[int], stream: int) -> None:
    """Queue pieces (``array('Q')`` of addresses and lengths) on ``stream``, which is not the default one.

    ``nbytes`` may be longer than the others: what is beyond them is not looked at.
    """
    count = len(dst)
    call, takes_failed = _batched("cuMemcpyBatchAsync")
    if call is None:
        each = libcuda().cuMemcpyAsync
        for to, at, length in zip(dst, src, nbytes, strict=False):
            _check(each(to, at, length, stream), "cuMemcpyAsync", 1)
        return
    pointers = dst.buffer_info()[0], src.buffer_info()[0], nbytes.buffer_info()[0]
    failed = (ctypes.byref(ctypes.c_size_t(0)),) if takes_failed else ()
    code = call(*pointers, count, _ATTRIBUTES_AT, _FIRST_AT, 1, *failed, stream)
    _check(code, "cuMemcpyBatchAsync", count)


def copy_rows(ops: array[int], stream: int) -> None:
    """Queue copies of equally spaced rows: ``array('q')`` of 14 words an operation, as :func:`row_op` makes them."""
    count = len(ops) // ROW_OP_WORDS
    call, takes_failed = _batched("cuMemcpy3DBatchAsync")
    if call is None:
        each = libcuda().cuMemcpy2DAsync_v2
        for at in range(0, len(ops), ROW_OP_WORDS):
            op = ops[at : at + ROW_OP_WORDS]
            copy = _Copy2D(src_type=_UNIFIED, src_device=op[1], src_pitch=op[2], dst_type=_UNIFIED)
            copy.dst_device, copy.dst_pitch, copy.width, copy.height = op[6], op[7], op[10], op[11]
            _check(each(ctypes.byref(copy), stream), "cuMemcpy2DAsync", 1)
        return
    failed = (ctypes.byref(ctypes.c_size_t(0)),) if takes_failed else ()
    _check(call(count, ops.buffer_info()[0], *failed, 0, stream), "cuMemcpy3DBatchAsync", count)


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
    driver = libcuda()
    newer = getattr(driver, f"{name}_v2", None)
    call = newer if newer is not None else getattr(driver, name, None)
    takes_failed = newer is None
    if call is not None:
        failed = (_handle,) if takes_failed else ()
        call.argtypes = (
            (_handle, _handle, _handle, _size, _handle, _handle, _size, *failed, _handle)
            if name == "cuMemcpyBatchAsync"
            else (_size, _handle, *failed, ctypes.c_ulonglong, _handle)
        )
    return call, takes_failed


def _check(code: int, call: str, count: int) -> None:
    if code:
        hint = f" for {count} pieces; what was copied is unknown. CACHECORE_CUDA_MEMCPY=each copies piece by piece"
        check(code, call, hint)


_size, _handle = ctypes.c_size_t, ctypes.c_void_p
