"""A block group's plan: which tensors exist and where every byte goes. Immutable, serialisable, no tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cachecore.asking import asked
from cachecore.errors import PlanError
from cachecore.group_plan import DESCRIBED, GroupPlan, check_layout, read_described
from cachecore.layout import CacheLayout
from cachecore.meaning import check_fields, positive, several
from cachecore.policy import LayoutHints, LayoutPolicy
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec

__all__ = ["BlockCachePlan", "GroupSpec", "plan_from_specs"]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group to plan: layers that share one block table, one count and one geometry.

    ``window`` (tokens) bounds what a sequence keeps in this group; None keeps all of it.
    """

    name: str
    geometry: BlockCacheGeometry
    window: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"group name is {self.name!r}; expected a non-empty string")
        if not isinstance(self.geometry, BlockCacheGeometry):
            raise TypeError(f"group {self.name!r}: geometry must be a BlockCacheGeometry, not {self.geometry!r}")
        if self.window is not None:
            object.__setattr__(self, "window", positive(self.window, f"group {self.name!r}: window"))


@dataclass(frozen=True, slots=True, repr=False)
class BlockCachePlan(GroupPlan):
    """One block group's recipe, kept for sizing, for both tiers' allocation, for views and for every copy."""

    unit: ClassVar[str] = "block"
    kind: ClassVar[str] = "block"

    group: GroupSpec
    specs: tuple[CacheTensorSpec, ...]
    layout: CacheLayout
    host_layout: CacheLayout
    policy: str
    policy_version: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", tuple(self.specs))
        self._prove()
        for spec in self.specs:
            _check_tokens(spec, self.group)

    @property
    def name(self) -> str:
        """The group's name."""
        return self.group.name

    @property
    def geometry(self) -> BlockCacheGeometry:
        """Tokens per block and per kernel page."""
        return self.group.geometry

    @property
    def pages_per_unit(self) -> int:
        """Kernel pages of one block."""
        return self.group.geometry.pages_per_block

    def block_nbytes(self, *, host: bool = False) -> int:
        """Bytes that one block adds, padding included."""
        return self.unit_nbytes(host=host)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kind": self.kind,
            "group": self.name,
            "logical_block_size": self.geometry.logical_block_size,
            "kernel_block_size": self.geometry.page_size,
            "window": self.group.window,
            **self.describe(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BlockCachePlan:
        """The inverse of :meth:`to_json`; everything is proved again."""
        check_fields(data, ("kind", "group", "logical_block_size", "kernel_block_size", "window", *DESCRIBED), "group")
        geometry = BlockCacheGeometry(data["logical_block_size"], data["kernel_block_size"])
        return cls(GroupSpec(data["group"], geometry, data["window"]), *read_described(data))


def plan_from_specs(
    specs: Sequence[CacheTensorSpec],
    geometry: BlockCacheGeometry,
    policy: LayoutPolicy,
    *,
    group: str = "full",
    window: int | None = None,
    hints: LayoutHints | None = None,
) -> BlockCachePlan:
    """Let ``policy`` lay out ``specs`` and prove what it returned."""
    hints = hints or LayoutHints()
    if not isinstance(policy, LayoutPolicy):
        raise TypeError(f"policy must be a LayoutPolicy, not {policy!r}")
    if not isinstance(hints, LayoutHints):
        raise TypeError(f"hints must be LayoutHints, not {hints!r}")
    for spec in several(specs, "specs"):
        if not isinstance(spec, CacheTensorSpec):
            raise TypeError(f"group {group!r}: specs must be of type CacheTensorSpec, not {spec!r}")
    group_spec = GroupSpec(group, geometry, window)
    if not specs:
        raise PlanError(f"group {group!r} has no caches; a plan needs at least one request or K/V spec", group=group)
    who = f"policy {policy.name!r}"
    asked(f"{who}: check_geometry()", lambda: policy.check_geometry(specs, geometry))
    where = f"{who}: select_block_layout()"
    layout = asked(where, lambda: policy.select_block_layout(specs, geometry, hints))
    check_layout(layout, specs, where)
    where = f"{who}: select_host_layout()"
    host_layout = asked(where, lambda: policy.select_host_layout(specs, geometry, layout, hints))
    check_layout(host_layout, specs, where, host=True)
    return BlockCachePlan(group_spec, tuple(specs), layout, host_layout, policy.name, policy.version)


def _check_tokens(spec: CacheTensorSpec, group: GroupSpec) -> None:
    page = group.geometry.page_size
    if page % spec.tokens_per_entry:
        raise PlanError(
            f"cache {spec.name!r} keeps one entry for {spec.tokens_per_entry} tokens, but the kernel block of group "
            f"{group.name!r} has {page}; the kernel block size must be a multiple",
            cache=spec.name,
        )
    if "token" in spec.axes:
        tokens = spec.shape[spec.axes.index("token")]
        if tokens * spec.tokens_per_entry != page:
            raise PlanError(
                f"cache {spec.name!r}: shape {spec.shape} holds {tokens} entries of {spec.tokens_per_entry} tokens; "
                f"the kernel block of group {group.name!r} has {page} tokens, so {page // spec.tokens_per_entry} fit",
                cache=spec.name,
            )
