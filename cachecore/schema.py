"""What operators ask for and what a plan records of it: requests, bindings and tensor specs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cachecore.errors import CacheLookupError, PlanError
from cachecore.meaning import HeadShard, Plane, check_fields, not_negative, positive, several, whole
from cachecore.payload import PAYLOAD_FIELDS, CachePayload

__all__ = [
    "BlockCacheBinding",
    "BlockCacheGeometry",
    "BlockCacheRequest",
    "BlockCacheRequestContext",
    "CacheTensorSpec",
    "LayerRowMap",
    "StateCacheRequest",
]


@dataclass(frozen=True, slots=True)
class BlockCacheGeometry:
    """Tokens in the scheduler's block and in the kernel's page.

    >>> BlockCacheGeometry(64, 16).pages_per_block
    4
    """

    logical_block_size: int
    kernel_block_size: int | None = None

    def __post_init__(self) -> None:
        logical = positive(self.logical_block_size, "logical_block_size")
        kernel = self.kernel_block_size
        kernel = logical if kernel is None else positive(kernel, "kernel_block_size")
        if logical % kernel:
            raise PlanError(
                f"logical_block_size {logical} is no positive multiple of kernel_block_size {kernel}; "
                "a scheduler block is one or more whole kernel pages",
                logical_block_size=logical,
                kernel_block_size=kernel,
            )
        object.__setattr__(self, "logical_block_size", logical)
        object.__setattr__(self, "kernel_block_size", kernel)

    @property
    def page_size(self) -> int:
        """Tokens per kernel page."""
        return self.kernel_block_size or self.logical_block_size

    @property
    def pages_per_block(self) -> int:
        """Kernel pages per logical block."""
        return self.logical_block_size // self.page_size


@dataclass(frozen=True, slots=True)
class BlockCacheRequestContext:
    """What an operator may look at when it states its requests: the geometry of every group."""

    geometries: Mapping[str, BlockCacheGeometry]

    def __post_init__(self) -> None:
        if not isinstance(self.geometries, Mapping):
            raise TypeError(f"geometries must be a mapping from group to geometry, not {self.geometries!r}")
        for group, geometry in self.geometries.items():
            if not isinstance(geometry, BlockCacheGeometry):
                raise TypeError(f"group {group!r}: geometry must be a BlockCacheGeometry, not {geometry!r}")
        object.__setattr__(self, "geometries", MappingProxyType(dict(self.geometries)))

    def __reduce__(self) -> tuple[type[BlockCacheRequestContext], tuple[dict[str, BlockCacheGeometry]]]:
        return type(self), (dict(self.geometries),)  # a mapping proxy is neither copied nor pickled

    def geometry(self, group: str = "full") -> BlockCacheGeometry:
        """The geometry of ``group``."""
        try:
            return self.geometries[group]
        except KeyError:
            raise CacheLookupError(
                f"group {group!r} does not exist; the groups are {', '.join(self.geometries)}", group=group
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCacheRequest(CachePayload):
    """What one operator needs in every kernel page: a payload, its meaning, and its group.

    ``shape`` is per kernel page. ``layer`` is the global layer id; rows of operators without one
    take the consumer row as their id. ``shared_with`` names the layer of another request of this
    name whose row is used instead of an own one (shared-KV layers).
    """

    group: str = "full"
    layer: int | None = None
    shared_with: int | None = None

    def __post_init__(self) -> None:
        CachePayload.__post_init__(self)
        if not isinstance(self.group, str) or not self.group:
            raise PlanError(f"cache {self.name!r}: group is {self.group!r}; expected a non-empty string")
        for name in ("layer", "shared_with"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, not_negative(value, f"cache {self.name!r}: {name}"))


@dataclass(frozen=True, slots=True)
class BlockCacheBinding:
    """Handed back to an operator: its row of a named cache, never the physical placement."""

    cache_name: str
    consumer_row: int
    group: str = "full"

    def __post_init__(self) -> None:
        for name in ("cache_name", "group"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"a binding's {name} must be a string, not {getattr(self, name)!r}")
        row = not_negative(self.consumer_row, f"cache {self.cache_name!r}: consumer_row")
        object.__setattr__(self, "consumer_row", row)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCacheRequest(CachePayload):
    """One state tensor: a payload per slot, with one row for each of ``layers``.

    Without ``layers`` the state has a single row and is found by name alone.
    """

    group: str = "state"
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        CachePayload.__post_init__(self)
        if not isinstance(self.group, str) or not self.group:
            raise PlanError(f"cache {self.name!r}: group is {self.group!r}; expected a non-empty string")
        if self.layers is not None:
            object.__setattr__(self, "layers", LayerRowMap(self.layers).layers)


@dataclass(frozen=True, slots=True)
class LayerRowMap:
    """Global layer ids in declared order; the position of each is its row.

    >>> LayerRowMap((3, 7)).row(7)
    1
    """

    layers: tuple[int, ...]
    _rows: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        layers = tuple(whole(layer, "a layer id") for layer in several(self.layers, "layers"))
        if not layers:
            raise PlanError("no layers given; expected at least one global layer id")
        rows: dict[int, int] = {}
        for row, layer in enumerate(layers):
            if layer < 0:
                raise PlanError(f"layer id {layer} is negative; expected zero or more", layer=layer)
            if rows.setdefault(layer, row) != row:
                raise PlanError(f"layer {layer} is listed twice; each layer has one row", layer=layer)
        object.__setattr__(self, "layers", layers)
        object.__setattr__(self, "_rows", rows)

    def row(self, layer: int) -> int:
        """The row of global ``layer``."""
        try:
            return self._rows[layer]
        except KeyError:
            raise CacheLookupError(
                f"layer {layer} owns no row here; the layers are {self.layers}", layer=layer
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTensorSpec(CachePayload):
    """One logical tensor of a group: a payload, its meaning, and which rows it holds.

    ``row_ids`` gives each row's global layer or consumer id. With ``consumer_rows`` the rows are
    found by the row an operator was bound to; without, by layer id (standard K/V, states).
    """

    row_ids: tuple[int, ...]
    consumer_rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        CachePayload.__post_init__(self)
        owner = f"cache {self.name!r}"
        row_ids = _rows(self.row_ids, f"{owner}: row id", self.name)
        object.__setattr__(self, "row_ids", row_ids)
        if not row_ids:
            raise PlanError(f"{owner} has no rows; expected at least one", cache=self.name)
        if self.consumer_rows is None:
            return
        rows = _rows(self.consumer_rows, f"{owner}: consumer row", self.name)
        object.__setattr__(self, "consumer_rows", rows)
        if len(rows) != len(row_ids):
            raise PlanError(f"{owner}: {len(rows)} consumer rows for {len(row_ids)} row ids", cache=self.name)

    @property
    def num_rows(self) -> int:
        """Rows of this tensor: layers or consumers."""
        return len(self.row_ids)

    @property
    def page_nbytes(self) -> int:
        """Bytes of one row in one kernel page (or slot), without padding."""
        return self.desc.nbytes

    def to_json(self) -> dict[str, Any]:
        """Plain data with every field, so that a reader needs no defaults."""
        return {
            **self.payload(),
            "shape": list(self.shape),
            "axes": list(self.axes),
            "shard": self.shard.to_json(),
            "planes": [plane.to_json() for plane in self.planes],
            "row_ids": list(self.row_ids),
            "consumer_rows": None if self.consumer_rows is None else list(self.consumer_rows),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CacheTensorSpec:
        """The inverse of :meth:`to_json`."""
        check_fields(data, (*PAYLOAD_FIELDS, "row_ids", "consumer_rows"), "cache")
        return cls(
            **{
                **data,
                "shape": several(data["shape"], "shape"),
                "axes": several(data["axes"], "axes"),
                "shard": HeadShard.from_json(data["shard"]),
                "planes": tuple(Plane.from_json(plane) for plane in several(data["planes"], "planes")),
                "row_ids": several(data["row_ids"], "row_ids"),
            }
        )


def _rows(rows: Iterable[int], what: str, cache: str) -> tuple[int, ...]:
    listed = tuple(whole(row, what) for row in several(rows, f"{what}s"))
    if listed and min(listed) < 0:
        raise PlanError(f"{what} {min(listed)} is negative; expected zero or more", cache=cache)
    if len(set(listed)) != len(listed):
        twice = Counter(listed).most_common(1)[0][0]
        raise PlanError(f"{what} {twice} is listed twice; every row stands once", cache=cache)
    return listed
