"""A model's plan: its block groups and state groups together, as the JSON that is saved and sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cachecore.device import DeviceSpec
from cachecore.errors import CacheCoreError, CacheLookupError, PlanError
from cachecore.group_plan import GroupPlan, check_names
from cachecore.meaning import check_fields, several
from cachecore.plan import BlockCachePlan
from cachecore.state_plan import StateCachePlan

__all__ = ["PLAN_FORMAT_VERSION", "CachePlanSet"]

PLAN_FORMAT_VERSION = 1
"""Version of the plan's JSON. Readers refuse any other."""

_KINDS: Mapping[str, type[BlockCachePlan | StateCachePlan]] = MappingProxyType(
    {BlockCachePlan.kind: BlockCachePlan, StateCachePlan.kind: StateCachePlan}
)


@dataclass(frozen=True, slots=True, repr=False)
class CachePlanSet:
    """A model's groups, planned for one device by one backend's policy."""

    groups: tuple[GroupPlan, ...]
    device: str
    backend: str
    _by_name: Mapping[str, GroupPlan] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "device", str(DeviceSpec.parse(self.device)))
        if not isinstance(self.backend, str) or not self.backend:
            raise PlanError(f"backend name is {self.backend!r}; expected a non-empty string")
        if not self.groups:
            raise PlanError("a plan set needs at least one group")
        for plan in self.groups:
            if not isinstance(plan, GroupPlan):
                raise TypeError(f"groups of a plan set are plans, not {plan!r}")
        by_name = {plan.name: plan for plan in self.groups}
        if len(by_name) != len(self.groups):
            names = [plan.name for plan in self.groups]
            raise PlanError(f"group names {names} repeat; each group is planned once")
        object.__setattr__(self, "_by_name", by_name)
        check_names([spec for plan in self.groups for spec in plan.specs], "the plan set", whole_model=True)

    def __repr__(self) -> str:
        return f"<CachePlanSet for {self.device} by {self.backend}: {', '.join(map(repr, self.groups))}>"

    def __getitem__(self, group: str) -> GroupPlan:
        try:
            return self._by_name[group]
        except KeyError:
            raise CacheLookupError(
                f"group {group!r} does not exist; the groups are {', '.join(self._by_name)}", group=group
            ) from None

    def __iter__(self) -> Iterator[GroupPlan]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def blocks(self) -> tuple[BlockCachePlan, ...]:
        """The block groups."""
        return tuple(plan for plan in self.groups if isinstance(plan, BlockCachePlan))

    @property
    def states(self) -> tuple[StateCachePlan, ...]:
        """The state groups."""
        return tuple(plan for plan in self.groups if isinstance(plan, StateCachePlan))

    @property
    def names(self) -> tuple[str, ...]:
        """The groups' names, in plan order."""
        return tuple(self._by_name)

    def only(self) -> GroupPlan:
        """The single group of a dense model."""
        if len(self.groups) != 1:
            raise PlanError(f"this plan set has groups {', '.join(self.names)}; name the one that is meant")
        return self.groups[0]

    def to_json(self) -> dict[str, Any]:
        """Plain data with its format version."""
        return {
            "format": "cachecore-plan",
            "version": PLAN_FORMAT_VERSION,
            "device": self.device,
            "backend": self.backend,
            "groups": [plan.to_json() for plan in self.groups],
        }

    def dumps(self) -> str:
        """The plan set as JSON text, the same for equal plans."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def loads(cls, text: str | bytes) -> CachePlanSet:
        """Read JSON text written by :meth:`dumps`, and prove it again."""
        try:
            data = json.loads(text)
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise PlanError(f"this is no plan: not JSON ({error})") from error
        return cls.from_json(data)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CachePlanSet:
        """The inverse of :meth:`to_json`.

        Raises
        ------
        PlanError
            For another format or version, a missing or unknown field, or a plan that is not sound.
        """
        if not isinstance(data, Mapping) or data.get("format") != "cachecore-plan":
            raise PlanError("this is no plan: expected a JSON object with format 'cachecore-plan'")
        version = data.get("version")
        if type(version) is not int or version != PLAN_FORMAT_VERSION:  # True equals 1
            raise PlanError(
                f"plan format version {version!r} is not understood; this cachecore reads version "
                f"{PLAN_FORMAT_VERSION}. Plan again with this release"
            )
        try:
            check_fields(data, ("format", "version", "device", "backend", "groups"), "plan")
            return cls(
                tuple(map(_read_group, several(data["groups"], "groups"))),
                data["device"],
                data["backend"],
            )
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            told = str(error) if isinstance(error, CacheCoreError) else f"{type(error).__name__}: {error}"
            raise PlanError(f"this plan is damaged: {told}") from error


def _read_group(data: Any) -> GroupPlan:
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise PlanError(f"a group is of kind {kind!r}; expected an object with kind {' or '.join(_KINDS)}")
    return _KINDS[kind].from_json(data)
