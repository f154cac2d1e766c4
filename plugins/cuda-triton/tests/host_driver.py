"""The driver's copies done at once by the host, so that what they are asked for can be checked without a GPU."""

from __future__ import annotations

import ctypes
import os
from array import array
from threading import RLock
from types import SimpleNamespace

import pytest
import torch
from cachecore_cuda_triton import by_engines, carry, staged
from cachecore_cuda_triton.driver import ROW_OP_WORDS
from cachecore_cuda_triton.launch import upload_ids
from cachecore_cuda_triton.staging import StagingUser
from cachecore_cuda_triton.tiles import TileTable

CPU = torch.device("cpu")
MOST_BLOCKS = 64

INTERPRETED = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="kernels reach the host's memory in Triton's interpreter only"
)


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


class HostRing:
    """A ring of three slots in host memory, and kernels that the host runs at once."""

    def __init__(self, slot_nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device, self.generation, self.turn = CPU, 0, 0
        self.slots: list[torch.Tensor] = []
        self.free = self.full = [0, 0, 0]
        self.kernels = self.engines = self.kernels_handle = self.engines_handle = self.came = 0
        self.lock = RLock()
        self._slot_nbytes = slot_nbytes
        self._numbers = torch.arange(MOST_BLOCKS)
        self.numbers_at = self._numbers.data_ptr()
        monkeypatch.setattr(staged, "launch_copy_at", self._launch)
        monkeypatch.setattr(staged, "upload", self._upload)

    @property
    def nbytes(self) -> int:
        return sum(slot.numel() for slot in self.slots)

    def join(self, user: StagingUser) -> None:
        self.grow(user.row_nbytes)

    def grow(self, nbytes: int) -> None:
        self.slots = [torch.empty(max(nbytes, self._slot_nbytes), dtype=torch.uint8) for _ in range(3)]
        self.generation += 1

    def next(self) -> int:
        self.turn = (self.turn + 1) % 3
        return self.turn

    def _upload(self, device: torch.device, stream: int, ids: array[int]) -> SimpleNamespace:
        self._ids = upload_ids(CPU, ids)[0]
        return SimpleNamespace(address=self._ids.data_ptr(), release=lambda stream: None)

    def _launch(self, table: TileTable, src: int, dst: int, count: int, stream: int) -> None:
        for at, to in zip(ids_at(src, count), ids_at(dst, count), strict=True):
            for first, target, src_stride, dst_stride, nbytes, _ in table.tiles[: table.num_tiles].tolist():
                base = table.address
                ctypes.memmove(base + target + to * dst_stride, base + first + at * src_stride, nbytes)


def ids_at(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address))
