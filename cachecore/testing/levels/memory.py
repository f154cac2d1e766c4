"""Memory: allocations are exact, zeroed and aligned, adopt without owning, and are refused whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cachecore.backend import CacheAllocation
from cachecore.errors import AllocationError
from cachecore.layout import CacheLayout
from cachecore.layout_kinds import contiguous_layout
from cachecore.plan import BlockCachePlan
from cachecore.policy import LayoutHints
from cachecore.schema import CacheTensorSpec
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_same, dump, fill, first_difference
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.places import Places
from cachecore.testing.samples import BLOCK_CASES, BlockCase, block_case
from cachecore.testing.subject import Subject

__all__ = ["CHECKS", "allocated", "check_exact", "dense_layout"]

_NUM_BLOCKS = 5
_MIB = 1 << 20


@contextmanager
def allocated(subject: Subject, plan: BlockCachePlan, num_blocks: int = _NUM_BLOCKS) -> Iterator[CacheAllocation[Any]]:
    """The device tier of a plan; skipped where its bytes have no addresses."""
    subject.need("byte_addressable")
    allocation = subject.allocate(plan, num_blocks)
    try:
        yield allocation
    finally:
        subject.backend.free(allocation)


@check("memory", "exact", BLOCK_CASES)
def exact(subject: Subject, case: BlockCase) -> str | None:
    """Buffers total reserved_nbytes(n), and every pool has the bytes that the layout says."""
    plan = subject.plan(case)
    with allocated(subject, plan) as allocation:
        check_exact(subject, plan, allocation, _NUM_BLOCKS)
    return None


def check_exact(subject: Subject, plan: BlockCachePlan, allocation: CacheAllocation[Any], num_blocks: int) -> None:
    """An allocation is what its layout says, pool for pool."""
    backend, adapter = subject.backend, subject.adapter()
    layout, entries = plan.layout, plan.num_entries(num_blocks)
    for what, expected, found in (
        ("allocation.layout", layout, allocation.layout),
        ("allocation.num_entries", entries, allocation.num_entries),
        ("pools of the allocation", len(layout.pools), len(allocation.pools)),
    ):
        if expected != found:
            raise Fault(what, expected=expected, found=found)
    total = sum(map(adapter.nbytes, allocation.buffers))
    if total != layout.reserved_nbytes(entries):
        raise Fault(
            f"buffers of {entries} entries of layout {layout.kind}",
            expected=f"reserved_nbytes({entries}) = {layout.reserved_nbytes(entries)} bytes",
            found=total,
            cause="sizes rounded up, or computed beside the layout: sizing would promise what is not there",
        )
    for number, pool in enumerate(allocation.pools):
        if adapter.nbytes(pool) != layout.pool_nbytes(number, entries):
            raise Fault(
                f"pool {number}",
                expected=f"{layout.pool_nbytes(number, entries)} bytes",
                found=adapter.nbytes(pool),
                cause="a pool cut from a buffer that is too short, or without its padding",
            )
    regions = {region.pool: region.nbytes for region in backend.regions(allocation)}
    wanted = {n: layout.pool_nbytes(n, entries) for n in range(len(layout.pools)) if layout.pool_nbytes(n, entries)}
    if regions != wanted:
        raise Fault(
            "regions()",
            expected=f"every non-empty pool, whole: {wanted}",
            found=regions,
            cause="rows registered instead of pools, or empty pools too",
        )


@check("memory", "every-byte", BLOCK_CASES)
def every_byte(subject: Subject, case: BlockCase) -> str | None:
    """Every byte of every pool holds what was written, apart from every other."""
    plan = subject.plan(case)
    with allocated(subject, plan) as allocation:
        written = fill(subject.backend, allocation, 1)
        found = dump(subject.backend, allocation)
        cause = "pools that share memory, or a write() that lands elsewhere"
        check_same("bytes read after writing all pools", _places(plan, allocation), written, found, cause)
    return None


@check("memory", "zeroed")
def zeroed(subject: Subject) -> str | None:
    """Fresh memory is zero, also where freed memory is used again."""
    plan = subject.plan(BLOCK_CASES[0])
    for _ in range(2):
        with allocated(subject, plan, 64) as allocation:
            for pool, data in enumerate(dump(subject.backend, allocation)):
                byte = first_difference(bytes(len(data)), data)
                if byte is not None:
                    raise Fault(
                        "fresh memory",
                        expected="zeros",
                        found=f"{data[byte]:#04x}",
                        at=_places(plan, allocation).describe(pool, byte),
                        cause="memory taken without clearing it (empty() instead of zeros()): another sequence's bytes",
                    )
            fill(subject.backend, allocation, 2)
    return None


@check("memory", "base-alignment")
def base_alignment(subject: Subject) -> str | None:
    """Pools start where their layout says, without taking more than reserved_nbytes(n)."""
    plan = subject.plan(block_case("many-pools-2-pages"), LayoutHints(base_alignment=2 * _MIB))
    with allocated(subject, plan) as allocation:
        total = sum(map(subject.adapter().nbytes, allocation.buffers))
        if total != plan.reserved_nbytes(_NUM_BLOCKS):
            raise Fault(
                "buffers with 2 MiB base alignment", expected=f"{plan.reserved_nbytes(_NUM_BLOCKS)} bytes", found=total
            )
        regions = subject.backend.regions(allocation)
        for region in regions:
            wanted = plan.layout.pools[region.pool].base_alignment
            if region.address % wanted:
                raise Fault(
                    f"address of pool {region.pool}",
                    expected=f"a multiple of {wanted}",
                    found=f"{region.address:#x}",
                    cause="PoolSpec.base_alignment ignored: the start within the buffer was not advanced",
                )
        written = fill(subject.backend, allocation, 3)
        check_same("bytes of aligned pools", _places(plan, allocation), written, dump(subject.backend, allocation))
        if not any(region.address for region in regions):
            raise Skipped("regions() gives no addresses, so alignment cannot be seen; sizes and bytes are right")
    return None


@check("memory", "adopt")
def adopt(subject: Subject) -> str | None:
    """Adopted memory is used in place, pools one after another, and not freed."""
    subject.need("byte_addressable")
    plan, backend, adapter = subject.plan(block_case("many-pools-2-pages")), subject.backend, subject.adapter()
    entries = plan.num_entries(_NUM_BLOCKS)
    buffer = adapter.buffer(plan.layout.nbytes(entries), subject.device)
    allocation = backend.adopt(buffer, plan.layout, entries)
    if allocation.owned:
        raise Fault("owned of an adopted allocation", expected=False, found=True)
    written = fill(backend, allocation, 4)
    for after in ("writing", "free()"):
        if after == "free()":
            backend.free(allocation)
        start = 0
        for pool, data in enumerate(written):
            found = adapter.peek(buffer, start, len(data))
            byte = first_difference(data, found)
            if byte is not None:
                raise Fault(
                    f"pool {pool} in the adopted buffer after {after}",
                    expected=f"{data[byte]:#04x}",
                    found=f"{found[byte]:#04x}",
                    at=f"byte {start + byte} of the buffer",
                    cause="adopt() copied the buffer, or pools do not follow one another",
                )
            start += len(data)
    return None


@check("memory", "adopt-too-small")
def adopt_too_small(subject: Subject) -> str | None:
    """A buffer that is one byte short is refused."""
    subject.need("byte_addressable")
    plan, adapter = subject.plan(BLOCK_CASES[0]), subject.adapter()
    buffer = adapter.buffer(plan.layout.nbytes(plan.num_entries(2)) - 1, subject.device)
    try:
        subject.backend.adopt(buffer, plan.layout, plan.num_entries(2))
    except (AllocationError, ValueError):
        return None
    raise Fault(
        "adopt() of a buffer that is one byte short",
        expected="an AllocationError",
        found="an allocation",
        cause="sizes not compared",
    )


@check("memory", "zero", BLOCK_CASES)
def zero(subject: Subject, case: BlockCase) -> str | None:
    """zero() clears the entries named, in every pool, and no neighbour."""
    plan = subject.plan(case)
    with allocated(subject, plan) as allocation:
        places = _places(plan, allocation)
        before = fill(subject.backend, allocation, 5)
        entries = sorted({0, 1, allocation.num_entries // 2, allocation.num_entries - 1})
        subject.backend.zero(allocation, entries).synchronize()
        expected = [bytearray(data) for data in before]
        for number, pool in enumerate(plan.layout.pools):
            for outer in range(pool.outer):
                for entry in entries:
                    start = (outer * allocation.num_entries + entry) * pool.inner
                    expected[number][start : start + pool.inner] = bytes(pool.inner)
        cause = "an entry's length or stride taken from another pool, or entries and blocks mixed up"
        check_same(f"zero({entries})", places, expected, dump(subject.backend, allocation), cause)
    return None


def _places(plan: BlockCachePlan, allocation: CacheAllocation[Any]) -> Places:
    return Places(plan.layout, plan.specs, allocation.num_entries, plan.pages_per_unit)


def dense_layout(*sizes: int) -> CacheLayout:
    """One pool a size, entries of so many bytes."""
    return contiguous_layout(
        [CacheTensorSpec(name=f"pool_{n}", shape=(size,), dtype="uint8", row_ids=(0,)) for n, size in enumerate(sizes)]
    )


CHECKS: tuple[Check, ...] = (
    exact,
    every_byte,
    zeroed,
    base_alignment,
    adopt,
    adopt_too_small,
    zero,
)
