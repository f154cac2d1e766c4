"""Layouts as data: where every row of every spec stands in pools of bytes, and the proof of it.

A pool is read as ``uint8[outer, num_entries, inner]``. The entry axis is the only one that moves:
an entry is a kernel page (``pages_per_entry=1``), a whole block (``pages_per_entry=r``), or a slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from cachecore.errors import LayoutError
from cachecore.layout_proof import prove_layout
from cachecore.meaning import check_fields, several, whole
from cachecore.schema import CacheTensorSpec

__all__ = ["NATIVE_ALIGNMENT", "CacheLayout", "CacheSlice", "PoolSpec", "RowStrides"]

NATIVE_ALIGNMENT = 512
"""Alignment, in bytes, that every backend gives a pool without taking more than the pool's bytes.

Device allocators align to at least this, and pages of host memory to more.
"""


_POOL_LEAST = {"outer": 0, "inner": 0, "base_alignment": 1, "alignment": 1, "stride_multiple": 1}


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool, read as ``uint8[outer, num_entries, inner]``.

    ``inner`` is in bytes and includes padding, so pools may be summed for sizing. The pool's start
    is aligned to ``base_alignment``. ``alignment`` and ``stride_multiple`` are what the layout
    claims and :meth:`CacheLayout.validate` proves: a spec's first row in an entry starts at a
    multiple of ``min(spec.alignment, alignment)``, and ``inner`` is a multiple of ``stride_multiple``.
    """

    outer: int
    inner: int
    base_alignment: int = NATIVE_ALIGNMENT
    alignment: int = 1
    stride_multiple: int = 1

    def __post_init__(self) -> None:
        for name, least in _POOL_LEAST.items():
            value = whole(getattr(self, name), f"pool {name}")
            if value < least:
                raise LayoutError(f"pool {name} is {value}; expected {'zero or more' if not least else 'at least 1'}")
            if value >= 1 << 63:
                raise LayoutError(f"pool {name} has {value.bit_length()} bits; expected a number below 2**63")
            object.__setattr__(self, name, value)
        for name in ("base_alignment", "alignment"):
            value = getattr(self, name)
            if value & (value - 1):
                raise LayoutError(f"pool {name} is {value}; expected a power of two")

    @property
    def entry_nbytes(self) -> int:
        """Bytes that one entry adds to this pool."""
        return self.outer * self.inner

    def to_json(self) -> dict[str, int]:
        """Plain data with every field."""
        return {name: getattr(self, name) for name in _POOL_LEAST}

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> PoolSpec:
        """The inverse of :meth:`to_json`."""
        check_fields(data, _POOL_LEAST, "pool")
        return cls(**data)


class CacheSlice(NamedTuple):
    """Where one row stands: bytes ``offset .. offset + nbytes`` of ``pool[outer, entry]``."""

    pool: int
    outer: int
    offset: int
    nbytes: int


class RowStrides(NamedTuple):
    """Row ``i``, entry ``e``, page ``j`` starts at ``start + i*row + e*entry + j*page`` bytes of ``pool``."""

    pool: int
    start: int
    row: int
    entry: int
    page: int


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Pools, and for each spec and row its :class:`CacheSlice`. ``kind`` is for people."""

    kind: str
    pools: tuple[PoolSpec, ...]
    slices: tuple[tuple[CacheSlice, ...], ...]
    pages_per_entry: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str):
            raise TypeError(f"a layout's kind must be a string, not {self.kind!r}")
        pages = whole(self.pages_per_entry, "pages_per_entry")
        if pages < 1:
            raise LayoutError(f"layout {self.kind!r} has {pages} pages_per_entry; expected at least 1")
        object.__setattr__(self, "pages_per_entry", pages)
        object.__setattr__(self, "pools", several(self.pools, "pools"))
        object.__setattr__(self, "slices", tuple(several(rows, "slices") for rows in several(self.slices, "slices")))
        for pool in self.pools:
            if not isinstance(pool, PoolSpec):
                raise TypeError(f"layout {self.kind!r} has pool {pool!r}; expected a PoolSpec")
        for place in chain.from_iterable(self.slices):
            if not isinstance(place, CacheSlice):
                raise TypeError(f"layout {self.kind!r} places a row by {place!r}; expected a CacheSlice")

    @property
    def entry_nbytes(self) -> int:
        """Bytes that one entry adds to all pools."""
        return sum(pool.entry_nbytes for pool in self.pools)

    @property
    def num_runs(self) -> int:
        """Runs of bytes that a block or slot is: its entries stand side by side in each pool and outer index."""
        return sum(pool.outer for pool in self.pools if pool.inner)

    @property
    def payload_nbytes(self) -> int:
        """Bytes of one entry that belong to a row; the rest is padding."""
        return sum(row.nbytes for rows in self.slices for row in rows)

    @property
    def padding_nbytes(self) -> int:
        """Bytes of one entry that belong to nobody."""
        return self.entry_nbytes - self.payload_nbytes

    def pool_nbytes(self, pool: int, num_entries: int) -> int:
        """Bytes of one pool with ``num_entries`` entries."""
        return self.pools[pool].entry_nbytes * num_entries

    def nbytes(self, num_entries: int) -> int:
        """Bytes of all pools, padding included."""
        return self.entry_nbytes * _entries(num_entries)

    def buffer_nbytes(self, pool: int, num_entries: int) -> int:
        """Bytes to own for one pool: the pool, and room to align its start beyond :data:`NATIVE_ALIGNMENT`."""
        nbytes = self.pool_nbytes(pool, num_entries)
        base = self.pools[pool].base_alignment
        return nbytes + base if nbytes and base > NATIVE_ALIGNMENT else nbytes

    def reserved_nbytes(self, num_entries: int) -> int:
        """Bytes of all buffers; what sizing counts and an allocation takes, exactly."""
        _entries(num_entries)
        return sum(self.buffer_nbytes(pool, num_entries) for pool in range(len(self.pools)))

    def row_strides(self, spec_index: int, row: int, num_entries: int) -> RowStrides:
        """Where one row stands in an allocation of ``num_entries`` (its ``row`` stride is 0)."""
        place = self.slices[spec_index][row]
        inner = self.pools[place.pool].inner
        start = place.outer * num_entries * inner + place.offset
        return RowStrides(place.pool, start, 0, inner, place.nbytes // self.pages_per_entry)

    def tensor_strides(self, spec_index: int, num_entries: int) -> RowStrides | None:
        """Where all rows of a spec stand, or None when they are not equally spaced in one pool."""
        rows = self.slices[spec_index]
        first = self.row_strides(spec_index, 0, num_entries)
        if len(rows) == 1:
            return first
        outer_step, offset_step = rows[1].outer - rows[0].outer, rows[1].offset - rows[0].offset
        step = outer_step * num_entries * self.pools[first.pool].inner + offset_step
        for index, place in enumerate(rows):
            if (
                place.pool != first.pool
                or place.outer != rows[0].outer + index * outer_step
                or place.offset != rows[0].offset + index * offset_step
            ):
                return None
        return first._replace(row=step)

    def validate(self, specs: Sequence[CacheTensorSpec], *, host: bool = False) -> None:
        """Prove that every row is placed once, apart from all others, and aligned as claimed.

        ``host`` waives row contiguity: no kernel reads the host tier.

        Raises
        ------
        LayoutError
            Naming the cache, the row and the pool at fault.
        """
        prove_layout(self, specs, host=host)

    def to_json(self) -> dict[str, Any]:
        """Plain data; equally spaced rows are written as one run ``[pool, outer, offset, nbytes, count, ...steps]``."""
        return {
            "kind": self.kind,
            "pages_per_entry": self.pages_per_entry,
            "pools": [pool.to_json() for pool in self.pools],
            "rows": [_fold(rows) for rows in self.slices],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], num_rows: Sequence[int]) -> CacheLayout:
        """The inverse of :meth:`to_json`, for specs with ``num_rows`` rows.

        Raises :class:`~cachecore.errors.LayoutError` before a run is written out that has other rows.
        """
        check_fields(data, ("kind", "pages_per_entry", "pools", "rows"), "layout")
        placed = several(data["rows"], "rows")
        if len(placed) != len(num_rows):
            raise LayoutError(f"layout places {len(placed)} specs, but there are {len(num_rows)}")
        return cls(
            kind=data["kind"],
            pools=tuple(PoolSpec.from_json(pool) for pool in several(data["pools"], "pools")),
            slices=tuple(_unfold(runs, rows) for runs, rows in zip(placed, num_rows, strict=True)),
            pages_per_entry=data["pages_per_entry"],
        )


_RUN_LENGTH = 7


def _entries(num_entries: int) -> int:
    if whole(num_entries, "num_entries") < 0:
        raise LayoutError(f"num_entries is {num_entries}; expected zero or more", num_entries=num_entries)
    return num_entries


def _fold(rows: Sequence[CacheSlice]) -> list[list[int]]:
    runs: list[list[int]] = []
    for place in rows:
        if runs:
            pool, outer, offset, nbytes, count, outer_step, offset_step = runs[-1]
            if place.pool == pool and place.nbytes == nbytes:
                if count == 1:
                    runs[-1][4:] = [2, place.outer - outer, place.offset - offset]
                    continue
                if place.outer == outer + count * outer_step and place.offset == offset + count * offset_step:
                    runs[-1][4] = count + 1
                    continue
        runs.append([*place, 1, 0, 0])
    return runs


def _unfold(runs: Sequence[Sequence[int]], num_rows: int) -> tuple[CacheSlice, ...]:
    for run in several(runs, "the runs of a cache"):
        if len(several(run, "a run of rows")) != _RUN_LENGTH or whole(run[4], "a run's row count") < 1:
            raise LayoutError(f"{run!r} is no run of rows; expected pool, outer, offset, nbytes, count and two steps")
    if sum(run[4] for run in runs) != num_rows:
        raise LayoutError(f"layout places {sum(run[4] for run in runs)} rows of a cache that has {num_rows}")
    return tuple(
        CacheSlice(pool, outer + step * outer_step, offset + step * offset_step, nbytes)
        for pool, outer, offset, nbytes, count, outer_step, offset_step in runs
        for step in range(count)
    )
