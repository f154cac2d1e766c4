"""What block plans and state plans share: specs, two proved layouts, and the arithmetic of their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cachecore.asking import shown
from cachecore.errors import PlanError, PluginError
from cachecore.layout import CacheLayout
from cachecore.meaning import not_negative, several
from cachecore.nbytes import format_nbytes
from cachecore.schema import CacheTensorSpec

__all__ = ["DESCRIBED", "GroupPlan", "check_layout", "check_names", "read_described"]

DESCRIBED = ("policy", "policy_version", "specs", "layout", "host_layout")
"""The JSON fields of both kinds of plan."""


class GroupPlan(ABC):
    """One group of a model: specs that share one count, with a device and a host layout.

    The count is of *units*: blocks of a block group, slots of a state group.
    """

    __slots__ = ()

    unit: ClassVar[str] = "unit"
    kind: ClassVar[str] = "group"

    specs: tuple[CacheTensorSpec, ...]
    layout: CacheLayout
    host_layout: CacheLayout
    policy: str
    policy_version: str

    def _prove(self) -> None:
        for field in ("policy", "policy_version"):
            if not isinstance(getattr(self, field), str):
                raise TypeError(f"group {self.name!r}: {field} must be a string, not {getattr(self, field)!r}")
        if not self.specs:
            raise PlanError(f"group {self.name!r} has no caches; a plan needs at least one spec")
        check_names(self.specs, f"group {self.name!r}")
        self.layout.validate(self.specs)
        self.host_layout.validate(self.specs, host=True)
        for tier, layout in (("device", self.layout), ("host", self.host_layout)):
            if layout.pages_per_entry not in (1, self.pages_per_unit):
                raise PlanError(
                    f"group {self.name!r}: the {tier} layout has {layout.pages_per_entry} pages an entry, but a "
                    f"{self.unit} has {self.pages_per_unit}; an entry is one page or one whole {self.unit}"
                )

    @property
    @abstractmethod
    def name(self) -> str:
        """The group's name."""

    @property
    @abstractmethod
    def pages_per_unit(self) -> int:
        """Kernel pages of one block; 1 for a slot."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain data."""

    def __repr__(self) -> str:
        caches = f"{len(self.specs)} cache{'s' * (len(self.specs) != 1)}"
        size = format_nbytes(self.unit_nbytes())
        return f"<{type(self).__name__} {self.name!r}: {caches}, {self.layout.kind}, {size} a {self.unit}>"

    def num_entries(self, num_units: int, *, host: bool = False) -> int:
        """Entries that ``num_units`` blocks or slots take in the device or the host layout."""
        layout = self.host_layout if host else self.layout
        units = not_negative(num_units, f"group {self.name!r}: num_{self.unit}s")
        return units * self.pages_per_unit // layout.pages_per_entry

    def unit_nbytes(self, *, host: bool = False) -> int:
        """Bytes that one block or slot adds, padding included."""
        return (self.host_layout if host else self.layout).nbytes(self.num_entries(1, host=host))

    def nbytes(self, num_units: int, *, host: bool = False) -> int:
        """Bytes of all pools."""
        return (self.host_layout if host else self.layout).nbytes(self.num_entries(num_units, host=host))

    def reserved_nbytes(self, num_units: int, *, host: bool = False) -> int:
        """Bytes of all buffers: pools and the room that aligns them."""
        return (self.host_layout if host else self.layout).reserved_nbytes(self.num_entries(num_units, host=host))

    def describe(self) -> dict[str, Any]:
        """The JSON of what both kinds of plan have."""
        return {
            "policy": self.policy,
            "policy_version": self.policy_version,
            "specs": [spec.to_json() for spec in self.specs],
            "layout": self.layout.to_json(),
            "host_layout": self.host_layout.to_json(),
        }


def read_described(data: Mapping[str, Any]) -> tuple[tuple[CacheTensorSpec, ...], CacheLayout, CacheLayout, str, str]:
    """The inverse of :meth:`GroupPlan.describe`: specs, layout, host layout, policy and its version."""
    specs = tuple(CacheTensorSpec.from_json(spec) for spec in several(data["specs"], "specs"))
    num_rows = [spec.num_rows for spec in specs]
    return (
        specs,
        CacheLayout.from_json(data["layout"], num_rows),
        CacheLayout.from_json(data["host_layout"], num_rows),
        data["policy"],
        data["policy_version"],
    )


def check_layout(layout: object, specs: Sequence[CacheTensorSpec], where: str, *, host: bool = False) -> None:
    """Prove what a policy's method returned before anything is derived from it."""
    if not isinstance(layout, CacheLayout):
        raise PluginError(f"{where} returned {shown(layout)}; expected a CacheLayout")
    layout.validate(specs, host=host)


def check_names(specs: Sequence[CacheTensorSpec], where: str, *, whole_model: bool = False) -> None:
    """One name is found by layer or by consumer row, never both, and no row of it stands twice."""
    by_consumer: dict[str, bool] = {}
    rows: dict[str, dict[str, set[int]]] = {}
    for spec in specs:
        consumer = spec.consumer_rows is not None
        if by_consumer.setdefault(spec.name, consumer) != consumer:
            raise PlanError(
                f"{where}: cache {spec.name!r} is both standard K/V, found by layer, and an operator's cache, "
                "found by its row; use another name for one of them",
                cache=spec.name,
            )
        taken = rows.setdefault(spec.name, {"consumer row": set(), "row id" if consumer else "layer": set()})
        for (what, numbers), mine in zip(taken.items(), (spec.consumer_rows or (), spec.row_ids), strict=True):
            both = numbers.intersection(mine)
            if both:
                raise PlanError(
                    f"{where}: {what} {min(both)} of cache {spec.name!r} stands in two tensors; a row is placed once",
                    cache=spec.name,
                )
            numbers.update(mine)
    if not whole_model:
        return
    for name, taken in rows.items():
        numbers = taken["consumer row"]
        if by_consumer[name] and len(numbers) != max(numbers) + 1:
            missing = next(row for row in range(max(numbers)) if row not in numbers)
            raise PlanError(f"{where}: consumer row {missing} of cache {name!r} is missing", cache=name)
