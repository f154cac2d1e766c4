"""The plan: which tensors exist and where every byte goes. Immutable, serialisable, no tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachecore.errors import CacheLookupError, PlanError
from cachecore.layout import CacheLayout
from cachecore.meaning import positive
from cachecore.policy import LayoutHints, LayoutPolicy
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec

__all__ = ["PLAN_FORMAT_VERSION", "BlockCachePlan", "CachePlanSet", "GroupSpec", "plan_from_specs"]

PLAN_FORMAT_VERSION = 1
"""Version of the plan's JSON. Readers refuse any other."""


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
            positive(self.window, f"group {self.name!r}: window")


@dataclass(frozen=True, slots=True)
class BlockCachePlan:
    """One group's recipe, kept for sizing, for both tiers' allocation, for views and for every copy."""

    group: GroupSpec
    specs: tuple[CacheTensorSpec, ...]
    layout: CacheLayout
    host_layout: CacheLayout
    policy: str
    policy_version: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "specs", tuple(self.specs))
        if not self.specs:
            raise PlanError(f"group {self.group.name!r} has no caches; a plan needs at least one request or K/V spec")
        for spec in self.specs:
            _check_tokens(spec, self.group)
        _check_names(self.specs, f"group {self.group.name!r}")
        self.layout.validate(self.specs)
        self.host_layout.validate(self.specs, host=True)
        pages = self.geometry.pages_per_block
        for tier, layout in (("device", self.layout), ("host", self.host_layout)):
            if layout.pages_per_entry not in (1, pages):
                raise PlanError(
                    f"group {self.group.name!r}: the {tier} layout has {layout.pages_per_entry} pages an entry, "
                    f"but a block has {pages}; an entry is one page or one whole block"
                )

    @property
    def name(self) -> str:
        """The group's name."""
        return self.group.name

    @property
    def geometry(self) -> BlockCacheGeometry:
        """Tokens per block and per kernel page."""
        return self.group.geometry

    def num_entries(self, num_blocks: int, *, host: bool = False) -> int:
        """Entries that ``num_blocks`` blocks take in the device or the host layout."""
        layout = self.host_layout if host else self.layout
        if not isinstance(num_blocks, int) or isinstance(num_blocks, bool) or num_blocks < 0:
            raise PlanError(f"group {self.name!r}: num_blocks is {num_blocks!r}; expected an integer of zero or more")
        return num_blocks * self.geometry.pages_per_block // layout.pages_per_entry

    def block_nbytes(self, *, host: bool = False) -> int:
        """Bytes that one block adds, padding included."""
        return (self.host_layout if host else self.layout).nbytes(self.num_entries(1, host=host))

    def nbytes(self, num_blocks: int, *, host: bool = False) -> int:
        """Bytes of all pools."""
        return (self.host_layout if host else self.layout).nbytes(self.num_entries(num_blocks, host=host))

    def reserved_nbytes(self, num_blocks: int, *, host: bool = False) -> int:
        """Bytes of all buffers: pools and the room that aligns them."""
        return (self.host_layout if host else self.layout).reserved_nbytes(self.num_entries(num_blocks, host=host))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "group": self.name,
            "logical_block_size": self.geometry.logical_block_size,
            "kernel_block_size": self.geometry.page_size,
            "window": self.group.window,
            "policy": self.policy,
            "policy_version": self.policy_version,
            "specs": [spec.to_json() for spec in self.specs],
            "layout": self.layout.to_json(),
            "host_layout": self.host_layout.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> BlockCachePlan:
        """The inverse of :meth:`to_json`; everything is proved again."""
        geometry = BlockCacheGeometry(data["logical_block_size"], data["kernel_block_size"])
        return cls(
            GroupSpec(data["group"], geometry, data["window"]),
            tuple(CacheTensorSpec.from_json(spec) for spec in data["specs"]),
            CacheLayout.from_json(data["layout"]),
            CacheLayout.from_json(data["host_layout"]),
            data["policy"],
            data["policy_version"],
        )


@dataclass(frozen=True, slots=True)
class CachePlanSet:
    """A model's groups, planned for one device by one backend's policy."""

    groups: tuple[BlockCachePlan, ...]
    device: str
    backend: str
    _by_name: Mapping[str, BlockCachePlan] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        if not self.groups:
            raise PlanError("a plan set needs at least one group")
        by_name = {plan.name: plan for plan in self.groups}
        if len(by_name) != len(self.groups):
            names = [plan.name for plan in self.groups]
            raise PlanError(f"group names {names} repeat; each group is planned once")
        object.__setattr__(self, "_by_name", by_name)
        _check_names([spec for plan in self.groups for spec in plan.specs], "the plan set", whole_model=True)

    def __getitem__(self, group: str) -> BlockCachePlan:
        try:
            return self._by_name[group]
        except KeyError:
            raise CacheLookupError(
                f"group {group!r} does not exist; the groups are {', '.join(self._by_name)}", group=group
            ) from None

    def __iter__(self) -> Iterator[BlockCachePlan]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def names(self) -> tuple[str, ...]:
        """The groups' names, in plan order."""
        return tuple(self._by_name)

    def only(self) -> BlockCachePlan:
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
        if data.get("version") != PLAN_FORMAT_VERSION:
            raise PlanError(
                f"plan format version {data.get('version')!r} is not understood; this cachecore reads version "
                f"{PLAN_FORMAT_VERSION}. Plan again with this release"
            )
        try:
            return cls(
                tuple(BlockCachePlan.from_json(group) for group in data["groups"]), data["device"], data["backend"]
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            if isinstance(error, CacheLookupError):
                raise
            raise PlanError(f"this plan is damaged: {type(error).__name__}: {error}") from error


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
    group_spec = GroupSpec(group, geometry, window)
    if not specs:
        raise PlanError(f"group {group!r} has no caches; a plan needs at least one request or K/V spec", group=group)
    policy.check_geometry(specs, geometry)
    layout = policy.select_block_layout(specs, geometry, hints)
    host_layout = policy.select_host_layout(specs, geometry, layout, hints)
    for what, value in (("select_block_layout", layout), ("select_host_layout", host_layout)):
        if not isinstance(value, CacheLayout):
            raise TypeError(f"policy {policy.name!r}: {what}() must return a CacheLayout, not {value!r}")
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


def _check_names(specs: Sequence[CacheTensorSpec], where: str, *, whole_model: bool = False) -> None:
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
