"""Filling allocations, reading them back, and comparing with what a copy should have left there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from cachecore.backend import CacheAllocation, CacheBackend
from cachecore.testing.diagnosis import copy_cause, stray_cause
from cachecore.testing.faults import Fault
from cachecore.testing.places import Places

__all__ = ["after_copy", "check_copy", "check_same", "dump", "fill", "first_difference"]

Contents = Sequence[bytes | bytearray]
Pairs = Iterable[tuple[int, int]]


def fill(backend: CacheBackend[Any], allocation: CacheAllocation[Any], seed: int) -> list[bytes]:
    """Overwrite every byte, padding included, with bytes that differ from block to block; returns them."""
    contents = []
    for pool, _ in enumerate(allocation.layout.pools):
        data = Random(f"{seed}/{pool}").randbytes(allocation.layout.pool_nbytes(pool, allocation.num_entries))
        if data:
            backend.write(allocation, pool, 0, data)
        contents.append(data)
    return contents


def dump(backend: CacheBackend[Any], allocation: CacheAllocation[Any]) -> list[bytes]:
    """Every byte of every pool."""
    contents = []
    for pool, _ in enumerate(allocation.layout.pools):
        nbytes = allocation.layout.pool_nbytes(pool, allocation.num_entries)
        data = backend.read(allocation, pool, 0, nbytes) if nbytes else b""
        if len(data) != nbytes:
            raise Fault(
                f"read() of all of pool {pool}",
                expected=f"{nbytes} bytes",
                found=f"{len(data)}",
                cause="the buffer is shorter than layout.pool_nbytes(), or read() drops the tail",
            )
        contents.append(bytes(data))
    return contents


def after_copy(src: Places, dst: Places, source: Contents, target: Contents, pairs: Pairs) -> list[bytearray]:
    """What the destination's pools hold once every payload byte of every pair has moved, and no other."""
    expected = [bytearray(pool) for pool in target]
    for src_block, dst_block in pairs:
        for spec, row, page in dst.parts:
            at = src.payload(spec, row, src_block, page)
            to = dst.payload(spec, row, dst_block, page)
            expected[to.pool][to.start : to.start + to.nbytes] = source[at.pool][at.start : at.start + at.nbytes]
    return expected


def check_copy(
    what: str,
    src: Places,
    dst: Places,
    source: Contents,
    target: Contents,
    found: Contents,
    pairs: Sequence[tuple[int, int]],
) -> None:
    """Compare ``found`` with :func:`after_copy` of ``source`` over ``target``; padding of destinations is free."""
    expected = after_copy(src, dst, source, target, pairs)
    if all(one == two for one, two in zip(expected, found, strict=True)):
        return
    for _, block in pairs:
        for pool, start, nbytes in dst.padding(block):
            expected[pool][start : start + nbytes] = found[pool][start : start + nbytes]
    for pool, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        byte = first_difference(wanted, got)
        if byte is None:
            continue
        owner = dst.owner(pool, byte)
        copied = {to: came for came, to in pairs}
        if owner is not None and owner[2] in copied:
            what_differs = f"{what}: block {copied[owner[2]]} did not arrive whole in block {owner[2]}"
            cause = copy_cause(src, dst, source, target, found, copied[owner[2]], owner, pairs)
        else:
            what_differs = f"{what}: a byte that the pairs do not name has changed"
            cause = stray_cause(src, dst, source, found, pool, byte, pairs)
        raise Fault(
            what_differs,
            expected=f"{wanted[byte]:#04x}",
            found=f"{got[byte]:#04x}",
            at=dst.describe(pool, byte),
            cause=cause,
        )


def check_same(what: str, places: Places, before: Contents, after: Contents, cause: str = "") -> None:
    """Nothing has changed, padding included."""
    for pool, (wanted, got) in enumerate(zip(before, after, strict=True)):
        byte = first_difference(wanted, got)
        if byte is not None:
            raise Fault(
                what,
                expected=f"{wanted[byte]:#04x}, as before",
                found=f"{got[byte]:#04x}",
                at=places.describe(pool, byte),
                cause=cause,
            )


def first_difference(one: bytes | bytearray, two: bytes | bytearray) -> int | None:
    """The first byte that differs."""
    if one == two:
        return None
    step = 1 << 16
    for start in range(0, len(one), step):
        left, right = one[start : start + step], two[start : start + step]
        if left != right:
            return start + next(at for at, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1])
    return min(len(one), len(two))
