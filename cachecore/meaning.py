"""What the bytes of a page mean: axes, planes and shards. A migration, which is not there yet, may use nothing else.

Shape alone moves some caches wrongly with matching sizes: a DSA index page is all keys first, then
all scales, so cutting it by tokens along the shape mixes the two.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsIndex

from cachecore.errors import PlanError

__all__ = [
    "AXES",
    "REPLICATED",
    "HeadShard",
    "Plane",
    "check_axes",
    "check_fields",
    "not_negative",
    "positive",
    "seconds",
    "several",
    "whole",
]

AXES = ("token", "head", "other")
"""The label a dimension may carry."""

MOST_SECONDS = 1_000_000
"""The longest time limit: 11 days. What waits longer waits for ever, and some clocks overflow."""


def whole(value: SupportsIndex, what: str) -> int:
    """Return ``value`` as an int through the index protocol; booleans and floats are a TypeError.

    Those of an array library too: torch's take part in the protocol, and a mask is no list of ids.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).rpartition(".")[2] == "bool":
        raise TypeError(f"{what} must be an integer, not {value!r}")
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{what} must be an integer, not {value!r}") from error


def several(values: Iterable[Any], what: str) -> tuple[Any, ...]:
    """Return ``values`` as a tuple; text and what cannot be iterated over are a TypeError."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} must be a sequence, not {values!r}")
    return tuple(values)


def positive(value: SupportsIndex, what: str) -> int:
    """Return ``value`` as an int that is at least 1."""
    number = whole(value, what)
    if number < 1:
        raise PlanError(f"{what} is {number}; expected a positive integer", value=number)
    return _within_64_bits(number, what)


def not_negative(value: SupportsIndex, what: str) -> int:
    """Return ``value`` as an int that is at least 0."""
    number = whole(value, what)
    if number < 0:
        raise PlanError(f"{what} is {number}; expected zero or more", value=number)
    return _within_64_bits(number, what)


def seconds(value: float, what: str) -> float:
    """Return ``value`` as a time limit: a number of seconds above 0, not infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} must be a number of seconds, not {value!r}")
    if not 0 < value <= MOST_SECONDS:
        raise PlanError(f"{what} is {value!r}; expected a number of seconds above 0 and at most {MOST_SECONDS}")
    return float(value)


def _within_64_bits(number: int, what: str) -> int:
    if number >= 1 << 63:
        raise PlanError(f"{what} has {number.bit_length()} bits; expected a number below 2**63", value=number)
    return number


@dataclass(frozen=True, slots=True)
class HeadShard:
    """Which of a model's heads a rank holds: ``count`` heads from ``first`` on, of ``total``.

    ``replica`` numbers the ranks that hold the same heads (0 where every head lives once).
    ``total=0`` means replicated: every rank holds the whole payload (see :data:`REPLICATED`).
    """

    total: int = 0
    first: int = 0
    count: int = 0
    replica: int = 0

    def __post_init__(self) -> None:
        for name in ("total", "first", "count", "replica"):
            object.__setattr__(self, name, not_negative(getattr(self, name), f"shard {name}"))
        if self.total and not (self.count and self.first + self.count <= self.total):
            raise PlanError(
                f"shard of {self.count} heads from head {self.first} does not lie within {self.total} heads",
                shard=self,
            )
        if not self.total and (self.first or self.count):
            raise PlanError(f"a replicated shard (total=0) names no heads, but first={self.first}, count={self.count}")

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the whole payload."""
        return self.total == 0

    def to_json(self) -> dict[str, int] | None:
        """Plain data; None when replicated."""
        if self.replicated:
            return None
        return {"total": self.total, "first": self.first, "count": self.count, "replica": self.replica}

    @classmethod
    def from_json(cls, data: Mapping[str, int] | None) -> HeadShard:
        """The inverse of :meth:`to_json`."""
        if data is None:
            return REPLICATED
        check_fields(data, ("total", "first", "count", "replica"), "shard")
        return cls(**data)


REPLICATED = HeadShard()
"""Every rank holds the whole payload (MLA latents, index keys)."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One of several arrays that follow one another in a page, each token-major by itself.

    ``token_nbytes`` counts bytes per cached token (per ``tokens_per_entry`` tokens of the model).
    """

    name: str
    token_nbytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"plane name is {self.name!r}; expected a non-empty string")
        object.__setattr__(self, "token_nbytes", positive(self.token_nbytes, f"plane {self.name!r} token_nbytes"))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"name": self.name, "token_nbytes": self.token_nbytes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plane:
        """The inverse of :meth:`to_json`."""
        check_fields(data, ("name", "token_nbytes"), "plane")
        return cls(**data)


def check_fields(data: Mapping[str, Any], fields: Iterable[str], what: str) -> None:
    """Refuse JSON of ``what`` that lacks a field or has one that this release does not know."""
    if not isinstance(data, Mapping):
        raise PlanError(f"{what} is {data!r}; expected an object")
    missing, unknown = sorted(set(fields) - set(data)), sorted(set(data) - set(fields))
    if missing or unknown:
        raise PlanError(
            f"{what} lacks fields {missing} and has unknown fields {unknown}", missing=missing, unknown=unknown
        )


def check_axes(axes: Iterable[str], shape: tuple[int, ...], owner: str) -> tuple[str, ...]:
    """Return ``axes`` as a tuple with one label a dimension; none given means all ``other``."""
    labels = several(axes, f"{owner}: axes") or ("other",) * len(shape)
    if len(labels) != len(shape):
        raise PlanError(
            f"{owner}: {len(labels)} axis labels {labels} for the {len(shape)} dimensions of shape {shape}; "
            "expected one label a dimension",
            axes=labels,
            shape=shape,
        )
    for label in labels:
        if label not in AXES:
            raise PlanError(f"{owner}: axis label {label!r} is unknown; expected one of {', '.join(AXES)}", axis=label)
    for label in ("token", "head"):
        if labels.count(label) > 1:
            raise PlanError(f"{owner}: axis label {label!r} appears twice in {labels}; a page has one such axis")
    for label, extent in zip(labels, shape, strict=True):
        if extent == 0 and label != "other":
            raise PlanError(
                f"{owner}: the {label} axis of shape {shape} is zero; only an 'other' axis may be empty",
                shape=shape,
                axis=label,
            )
    return labels
