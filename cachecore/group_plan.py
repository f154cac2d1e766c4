"""What block plans and state plans share: specs, two proved layouts, and the arithmetic of their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from cachecore.errors import PlanError
from cachecore.layout import CacheLayout
from cachecore.policy import LayoutPolicy
from cachecore.schema import CacheTensorSpec

__all__ = ["GroupPlan", "check_layouts", "check_names"]


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

    def num_entries(self, num_units: int, *, host: bool = False) -> int:
        """Entries that ``num_units`` blocks or slots take in the device or the host layout."""
        layout = self.host_layout if host else self.layout
        if not isinstance(num_units, int) or isinstance(num_units, bool) or num_units < 0:
            raise PlanError(
                f"group {self.name!r}: num_{self.unit}s is {num_units!r}; expected an integer of zero or more"
            )
        return num_units * self.pages_per_unit // layout.pages_per_entry

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


def check_layouts(policy: LayoutPolicy, **layouts: object) -> None:
    """Refuse what a policy's method returned instead of a layout."""
    for method, value in layouts.items():
        if not isinstance(value, CacheLayout):
            raise TypeError(f"policy {policy.name!r}: {method}() must return a CacheLayout, not {value!r}")


def check_names(specs: Sequence[CacheTensorSpec], where: str, *, whole_model: bool = False) -> None:
    """One name is found by layer or by consumer row, never both, and no row of it stands twice."""
    by_consumer: dict[str, bool] = {}
    rows: dict[str, set[int]] = {}
    for spec in specs:
        consumer = spec.consumer_rows is not None
        if by_consumer.setdefault(spec.name, consumer) != consumer:
            raise PlanError(
                f"{where}: cache {spec.name!r} is both standard K/V, found by layer, and an operator's cache, "
                "found by its row; use another name for one of them",
                cache=spec.name,
            )
        mine = spec.consumer_rows if spec.consumer_rows is not None else spec.row_ids
        taken = rows.setdefault(spec.name, set())
        both = taken.intersection(mine)
        if both:
            raise PlanError(
                f"{where}: {'consumer row' if consumer else 'layer'} {min(both)} of cache {spec.name!r} "
                "stands in two tensors; every row is placed once",
                cache=spec.name,
            )
        taken.update(mine)
    if not whole_model:
        return
    for name, taken in rows.items():
        if by_consumer[name] and len(taken) != max(taken) + 1:
            missing = next(row for row in range(max(taken)) if row not in taken)
            raise PlanError(f"{where}: consumer row {missing} of cache {name!r} is missing", cache=name)
