"""The driver's copies done at once by the host, so that what they are asked for can be checked without a GPU."""

from __future__ import annotations

import ctypes
from array import array

import pytest
from cachecore_cuda_triton import by_engines, carry, staged
from cachecore_cuda_triton.driver import ROW_OP_WORDS


def copy_pieces(dst: array[int], src: array[int], nbytes: array[int], stream: int) -> None:
    for to, at, length in zip(dst, src, nbytes, strict=True):
        ctypes.memmove(to, at, length)


def copy_rows(ops: array[int], stream: int) -> None:
    for start in range(0, len(ops), ROW_OP_WORDS):
        op = ops[start : start + ROW_OP_WORDS]
        for row in range(op[11]):
            ctypes.memmove(op[6] + row * op[7], op[1] + row * op[2], op[10])


@pytest.fixture
def host_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies move real bytes at once; streams and events are not looked at."""
    for module in (carry, by_engines):
        monkeypatch.setattr(module, "copy_pieces", copy_pieces)
    monkeypatch.setattr(by_engines, "copy_rows", copy_rows)
    for name in ("record", "wait"):
        monkeypatch.setattr(staged, name, lambda *_: None)
