"""A state group's plan: recurrent, convolution and window states, a fixed payload per sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from cachecore.asking import asked
from cachecore.errors import PlanError
from cachecore.group_plan import DESCRIBED, GroupPlan, check_layout, read_described
from cachecore.layout import CacheLayout
from cachecore.meaning import check_fields, several
from cachecore.policy import LayoutHints, LayoutPolicy
from cachecore.schema import CacheTensorSpec, StateCacheRequest

__all__ = ["AnyState", "StateCachePlan", "named_states", "plan_from_states", "state_specs"]

AnyState = StateCacheRequest | tuple[Sequence[int], Any]
"""A state by name, or an anonymous one: ``(shape, dtype)``."""


@dataclass(frozen=True, slots=True, repr=False)
class StateCachePlan(GroupPlan):
    """One state group's recipe. An entry is a slot: one sequence's share of every state tensor."""

    unit: ClassVar[str] = "slot"
    kind: ClassVar[str] = "state"

    group: str
    specs: tuple[CacheTensorSpec, ...]
    layout: CacheLayout
    host_layout: CacheLayout
    policy: str
    policy_version: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", tuple(self.specs))
        if not isinstance(self.group, str) or not self.group:
            raise PlanError(f"group name is {self.group!r}; expected a non-empty string")
        for spec in self.specs:
            if spec.consumer_rows is not None:
                raise PlanError(
                    f"state {spec.name!r} has consumer rows; states are found by name and layer", cache=spec.name
                )
        self._prove()

    @property
    def name(self) -> str:
        """The group's name."""
        return self.group

    @property
    def pages_per_unit(self) -> int:
        """A slot is one entry."""
        return 1

    def slot_nbytes(self, *, host: bool = False) -> int:
        """Bytes that one slot adds, padding included."""
        return self.unit_nbytes(host=host)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": self.kind, "group": self.group, **self.describe()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StateCachePlan:
        """The inverse of :meth:`to_json`; everything is proved again."""
        check_fields(data, ("kind", "group", *DESCRIBED), "group")
        return cls(data["group"], *read_described(data))


def state_specs(requests: Sequence[StateCacheRequest]) -> tuple[CacheTensorSpec, ...]:
    """One tensor a request, with a row for each of its layers, or a single row found by name alone."""
    for request in requests:
        if not isinstance(request, StateCacheRequest):
            raise TypeError(f"states must be StateCacheRequest, not {request!r}")
    names = [request.name for request in requests]
    for request in requests:
        if names.count(request.name) > 1 and request.layers is None:
            raise PlanError(
                f"state {request.name!r} is asked for twice; name the layers of each, or use two names",
                cache=request.name,
            )
    return tuple(
        CacheTensorSpec(**request.payload(), row_ids=(0,) if request.layers is None else request.layers)
        for request in requests
    )


def named_states(states: Sequence[AnyState]) -> tuple[StateCacheRequest, ...]:
    """States with the anonymous ones named ``state_0``, ``state_1``, ... in their order.

    >>> [request.name for request in named_states([((4, 8), "float32"), ((3,), "bfloat16")])]
    ['state_0', 'state_1']
    """
    named: list[StateCacheRequest] = []
    anonymous = count()
    for state in several(states, "states"):
        if isinstance(state, StateCacheRequest):
            named.append(state)
        elif isinstance(state, (tuple, list)) and len(state) == 2:
            named.append(StateCacheRequest(name=f"state_{next(anonymous)}", shape=state[0], dtype=state[1]))
        else:
            raise TypeError(f"states must be StateCacheRequest or (shape, dtype), not {state!r}")
    return tuple(named)


def plan_from_states(
    states: Sequence[AnyState], policy: LayoutPolicy, *, hints: LayoutHints | None = None
) -> tuple[StateCachePlan, ...]:
    """Let ``policy`` lay out every state group that ``states`` name, and prove what it returned.

    Anonymous states are ``(shape, dtype)``: each has one row in group ``state`` and a name by its number.
    """
    hints = hints or LayoutHints()
    if not isinstance(policy, LayoutPolicy):
        raise TypeError(f"policy must be a LayoutPolicy, not {policy!r}")
    if not isinstance(hints, LayoutHints):
        raise TypeError(f"hints must be LayoutHints, not {hints!r}")
    groups: dict[str, list[StateCacheRequest]] = {}
    for request in named_states(states):
        groups.setdefault(request.group, []).append(request)
    plans = []
    for group, listed in groups.items():
        plans.append(_plan_group(group, state_specs(listed), policy, hints))
    return tuple(plans)


def _plan_group(
    group: str, specs: tuple[CacheTensorSpec, ...], policy: LayoutPolicy, hints: LayoutHints
) -> StateCachePlan:
    where = f"policy {policy.name!r}: select_state_layout()"
    layout = asked(where, lambda: policy.select_state_layout(specs, hints))
    check_layout(layout, specs, where)
    where = f"policy {policy.name!r}: select_state_host_layout()"
    host_layout = asked(where, lambda: policy.select_state_host_layout(specs, layout, hints))
    check_layout(host_layout, specs, where, host=True)
    return StateCachePlan(group, specs, layout, host_layout, policy.name, policy.version)
