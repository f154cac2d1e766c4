"""Plans whose blocks or slots are one run on the device, where the policy makes such."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cachecore.errors import PlanError
from cachecore.plan import BlockCachePlan
from cachecore.policy import LayoutHints
from cachecore.state_plan import StateCachePlan
from cachecore.testing.faults import Skipped

__all__ = ["one_run"]

P = TypeVar("P", BlockCachePlan, StateCachePlan)


def one_run(make: Callable[[LayoutHints], P]) -> P:
    """What ``make`` plans with the hint; :class:`Skipped` where the policy refuses it, or lays out as without."""
    try:
        plan = make(LayoutHints(one_run_per_block=True))
    except PlanError as error:
        raise Skipped(f"the policy refuses one_run_per_block: {error}") from error
    if plan.layout.num_runs != 1:
        raise Skipped(
            f"the policy does not honour one_run_per_block: a {plan.unit} is several runs in layout {plan.layout.kind}"
        )
    return plan
