"""One payload and its meaning: the fields that a request and a tensor spec share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cachecore.dtypes import ITEMSIZE, dtype_name
from cachecore.errors import PlanError
from cachecore.meaning import REPLICATED, HeadShard, Plane, check_axes, positive, several, whole

__all__ = ["PAYLOAD_FIELDS", "CacheDesc", "CachePayload"]


@dataclass(frozen=True, slots=True)
class CacheDesc:
    """The payload of one row in one entry: ``shape`` excludes the row and the entry axis.

    ``alignment`` (bytes, a power of two, a multiple of the item size) holds for the spec's first row
    in an entry of an aligned layout; ``page_stride_multiple`` for the distance between entries.
    """

    shape: tuple[int, ...]
    dtype: str
    alignment: int = 256
    page_stride_multiple: int = 1
    nbytes: int = field(init=False, compare=False)
    aligned_nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if isinstance(self.shape, (str, bytes)) or not isinstance(self.shape, Iterable):
            raise TypeError(f"shape must be a sequence of integers, not {self.shape!r}")
        shape = tuple(whole(extent, "a dimension") for extent in self.shape)
        dtype = dtype_name(self.dtype)
        itemsize = ITEMSIZE[dtype]
        count = 1
        for extent in shape:
            if extent < 0:
                raise PlanError(f"shape {shape} has a negative dimension; expected zero or more", shape=shape)
            count *= extent
        alignment = whole(self.alignment, "alignment")
        if alignment < 1 or alignment & (alignment - 1):
            raise PlanError(
                f"alignment is {alignment}; expected a positive power of two, in bytes", alignment=alignment
            )
        if alignment % itemsize:
            raise PlanError(
                f"alignment {alignment} does not suit {dtype}: it must be a multiple of its {itemsize} bytes",
                alignment=alignment,
                dtype=dtype,
            )
        if max(count * itemsize, alignment) >= 1 << 63:
            raise PlanError(
                f"shape {shape} of {dtype}, aligned to {alignment}, takes more than 2**63 bytes", shape=shape
            )
        put(self, "shape", shape)
        put(self, "dtype", dtype)
        put(self, "alignment", alignment)
        put(self, "page_stride_multiple", positive(self.page_stride_multiple, "page_stride_multiple"))
        put(self, "nbytes", count * itemsize)
        put(self, "aligned_nbytes", -(-count * itemsize // alignment) * alignment)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePayload:
    """A named payload: its bytes (``desc``) and what they mean. Base of requests and specs.

    ``shape`` is per kernel page (or slot); ``axes`` labels each dimension ``token``, ``head`` or
    ``other``; ``format`` says what the bytes mean; ``planes`` describe a page that is not token-major.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    alignment: int = 256
    page_stride_multiple: int = 1
    per_row_contiguous: bool = False
    axes: tuple[str, ...] = ()
    tokens_per_entry: int = 1
    shard: HeadShard = REPLICATED
    format: str = "plain"
    planes: tuple[Plane, ...] = ()
    desc: CacheDesc = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"cache name is {self.name!r}; expected a non-empty string", cache=self.name)
        owner = f"cache {self.name!r}"
        try:
            desc = CacheDesc(self.shape, self.dtype, self.alignment, self.page_stride_multiple)
        except PlanError as error:
            raise PlanError(f"{owner}: {error}", cache=self.name) from error
        except TypeError as error:
            raise TypeError(f"{owner}: {error}") from error
        if not isinstance(self.per_row_contiguous, bool):
            raise TypeError(f"{owner}: per_row_contiguous must be a bool, not {self.per_row_contiguous!r}")
        if not isinstance(self.format, str) or not self.format:
            raise PlanError(f"{owner}: format is {self.format!r}; expected a non-empty string")
        if not isinstance(self.shard, HeadShard):
            raise TypeError(f"{owner}: shard must be a HeadShard, not {self.shard!r}")
        planes = several(self.planes, f"{owner}: planes")
        for plane in planes:
            if not isinstance(plane, Plane):
                raise TypeError(f"{owner}: planes must be of type Plane, not {plane!r}")
        put(self, "desc", desc)
        put(self, "shape", desc.shape)
        put(self, "dtype", desc.dtype)
        put(self, "alignment", desc.alignment)
        put(self, "page_stride_multiple", desc.page_stride_multiple)
        put(self, "axes", check_axes(self.axes, desc.shape, owner))
        put(self, "tokens_per_entry", positive(self.tokens_per_entry, f"{owner}: tokens_per_entry"))
        put(self, "planes", planes)
        if planes:
            self._check_planes(owner)

    def _check_planes(self, owner: str) -> None:
        if "token" not in self.axes:
            raise PlanError(f"{owner}: planes need a token axis; label one of the axes {self.axes} 'token'")
        tokens = self.shape[self.axes.index("token")]
        total = sum(plane.token_nbytes for plane in self.planes) * tokens
        if total != self.desc.nbytes:
            raise PlanError(
                f"{owner}: the planes hold {total} bytes for {tokens} tokens, but shape {self.shape} of "
                f"{self.dtype} is {self.desc.nbytes} bytes; every byte of a page belongs to one plane",
                cache=self.name,
            )

    def contract(self) -> tuple[object, ...]:
        """Everything that must agree for two rows to stand in one tensor."""
        return (
            self.shape,
            self.dtype,
            self.alignment,
            self.page_stride_multiple,
            self.per_row_contiguous,
            self.axes,
            self.tokens_per_entry,
            self.shard,
            self.format,
            self.planes,
        )

    def payload(self) -> dict[str, Any]:
        """The shared fields, as keyword arguments."""
        return {name: getattr(self, name) for name in PAYLOAD_FIELDS}


PAYLOAD_FIELDS = (
    "name",
    "shape",
    "dtype",
    "alignment",
    "page_stride_multiple",
    "per_row_contiguous",
    "axes",
    "tokens_per_entry",
    "shard",
    "format",
    "planes",
)
