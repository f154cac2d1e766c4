"""One engine with its free blocks and slots, shared by any number of caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from cachecore import (
    BlockPairs,
    CacheEngine,
    CachePlanSet,
    CacheTensorSpec,
    Completion,
    NamedCacheView,
    PlanError,
    PluginError,
    PluginRegistry,
    StateCacheEngine,
    open_engine,
)
from cachecore.meaning import several
from cachecore.plan import BlockCachePlan
from cachecore.state_plan import StateCachePlan
from cachecore.stats import GroupStats
from cachecore_transformers.blocks import BlockAllocator
from cachecore_transformers.models import LayerCache, describe_layers
from cachecore_transformers.plan import STATE_GROUP, blocks_for, plan_model
from cachecore_transformers.shapes import KvShape, StateShape
from cachecore_transformers.tables import BlockTables, SlotTables

__all__ = ["CachePool", "Group", "SlotGroup", "copy_blocks", "open_pool"]


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a pool: its plan, its device, and the free blocks of both tiers."""

    plan: BlockCachePlan
    device: torch.device
    allocator: BlockAllocator
    host_allocator: BlockAllocator
    engine: CacheEngine[torch.Tensor]

    @property
    def page_order(self) -> tuple[int, ...] | None:
        """The axes that turn a row view into ``(entries, [pages,] tokens, heads, dim)``; None where it is so."""
        axes = self.plan.specs[0].axes
        if axes == ("token", "head", "other"):
            return None
        lead = 1 if self.plan.layout.pages_per_entry == 1 else 2
        return (*range(lead), *(lead + axes.index(axis) for axis in ("token", "head", "other")))

    @property
    def rate(self) -> int:
        """Tokens that share one entry of a block: 1, but for compressed entries."""
        return self.plan.specs[0].tokens_per_entry

    @property
    def block_size(self) -> int:
        """Tokens (or compressed entries) in a block."""
        return self.plan.geometry.logical_block_size // self.rate

    @property
    def page_size(self) -> int:
        """Tokens (or compressed entries) in a kernel page."""
        return self.plan.geometry.page_size // self.rate

    @property
    def entry_tokens(self) -> int:
        """Tokens in an entry of the device layout: a page's, or a whole block's."""
        return self.page_size * self.plan.layout.pages_per_entry

    @property
    def window(self) -> int | None:
        """Tokens that a query sees, itself included; None for all."""
        return self.plan.group.window

    def new_tables(self) -> BlockTables:
        """Tables of one cache in this group."""
        return BlockTables(self.allocator, self.block_size, self.window, self.rate)

    def copy(self, pairs: BlockPairs) -> Completion:
        """Copy blocks on the device."""
        return self.engine.copy_blocks(pairs, group=self.plan.name)

    def swap(self, pairs: BlockPairs, *, to_host: bool) -> Completion:
        """Move blocks between the tiers."""
        return (self.engine.swap_out if to_host else self.engine.swap_in)(pairs, group=self.plan.name)


@dataclass(frozen=True, slots=True)
class SlotGroup:
    """The state group of a pool: its plan, its device, and the free slots of both tiers."""

    plan: StateCachePlan
    device: torch.device
    allocator: BlockAllocator
    host_allocator: BlockAllocator
    engine: StateCacheEngine[torch.Tensor]

    def new_tables(self) -> SlotTables:
        """Slots of one cache in this group; a slot is zeroed when it is given to a new sequence."""
        return SlotTables(self.allocator, self.zero)

    def zero(self, slots: list[int]) -> None:
        """Zero slots for new sequences."""
        self.engine.zero_slots(slots, group=self.plan.name)

    def copy(self, pairs: BlockPairs) -> Completion:
        """Copy slots on the device."""
        return self.engine.copy_slots(pairs, group=self.plan.name)

    def swap(self, pairs: BlockPairs, *, to_host: bool) -> Completion:
        """Move slots between the tiers."""
        return (self.engine.swap_out if to_host else self.engine.swap_in)(pairs, group=self.plan.name)


class CachePool:
    """The blocks and slots of one running engine, handed out to caches.

    ``layers`` describe the model's layers in order (:func:`~cachecore_transformers.describe_layers`).
    The pool owns the engine: :meth:`close` closes it.
    """

    def __init__(self, engine: CacheEngine[torch.Tensor], layers: tuple[LayerCache, ...]) -> None:
        if not isinstance(engine, CacheEngine):
            raise TypeError(f"engine must be a CacheEngine, as open_engine() makes it, not {engine!r}")
        for layer in several(layers, "layers"):
            if not isinstance(layer, LayerCache):
                raise TypeError(f"layers must be what describe_layers() returns, not {layer!r}")
        self.engine = engine
        self.layers = layers
        needed = {layer.group for layer in layers if layer.group is not None}
        needed |= {entry.group for layer in layers for entry in layer.entries}
        needed |= {STATE_GROUP for layer in layers if layer.states}
        if needed != set(engine.plans.names):
            raise PlanError(
                f"the engine has groups {sorted(engine.plans.names)}, but the model's layers need {sorted(needed)}; "
                "plan with plan_model() of the same configuration"
            )
        _check_rows(engine.plans, layers)
        self.groups: dict[str, Group | SlotGroup] = {}
        counts = {group.group: group for group in engine.stats().groups}
        for plan in engine.plans.blocks:
            device = self._device_of(engine.block_caches, plan.specs[0])
            self.groups[plan.name] = Group(plan, device, *_allocators(counts[plan.name], "blocks"), engine)
        if engine.plans.states:
            counts = {group.group: group for group in engine.states.stats().groups}
        for slots in engine.plans.states:
            device = self._device_of(engine.states.state_caches, slots.specs[0])
            self.groups[slots.name] = SlotGroup(slots, device, *_allocators(counts[slots.name], "slots"), engine.states)

    def _device_of(self, caches: NamedCacheView[torch.Tensor], spec: CacheTensorSpec) -> torch.device:
        row: object = caches.layer(spec.name, spec.row_ids[0])
        if not isinstance(row, torch.Tensor):
            raise PluginError(
                f"backend {self.engine.backend.name!r} makes views of type {type(row).__name__}; transformers needs "
                "torch tensors, so choose a torch backend such as cachecore-cpu"
            )
        return row.device

    def num_free(self, *, host: bool = False) -> dict[str, int]:
        """Free blocks (slots, for states) of every group."""
        return {
            name: (group.host_allocator if host else group.allocator).num_free for name, group in self.groups.items()
        }

    def num_used(self, *, host: bool = False) -> dict[str, int]:
        """Blocks (slots) of every group that some cache holds; all zero once every cache was released."""
        return {
            name: (group.host_allocator if host else group.allocator).num_used for name, group in self.groups.items()
        }

    def close(self) -> None:
        """Close the engine. Caches of this pool cannot be used afterwards."""
        self.engine.close()

    def __enter__(self) -> CachePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_rows(plans: CachePlanSet, layers: Sequence[LayerCache]) -> None:
    """Every layer with keys and values has its row; a plan of a smaller model of the same kind has too few."""
    planned = {plan.name: {layer for spec in plan.specs for layer in spec.row_ids} for plan in plans.blocks}
    for layer in layers:
        if layer.group is not None and layer.layer not in planned[layer.group]:
            raise PlanError(
                f"layer {layer.layer} of the model has no row in group {layer.group!r}, which was planned for layers "
                f"{sorted(planned[layer.group])}; plan with plan_model() of the same configuration",
                layer=layer.layer,
            )


def copy_blocks(pool: CachePool, sources: Mapping[str, Sequence[int]], what: str) -> dict[str, list[int]]:
    """Copies of blocks and slots, in every group or in none: on failure nothing stays taken."""
    for name, blocks in sources.items():
        pool.groups[name].allocator.check(len(blocks), what)
    taken: dict[str, list[int]] = {}
    try:
        for name, blocks in sources.items():
            taken[name] = pool.groups[name].allocator.take(len(blocks), what)
            pool.groups[name].copy(BlockPairs(blocks, taken[name]))
    except BaseException:
        for name, blocks in taken.items():
            pool.groups[name].allocator.release(blocks)
        raise
    return taken


def _allocators(counts: GroupStats, what: str) -> tuple[BlockAllocator, BlockAllocator]:
    return (
        BlockAllocator(counts.num_blocks, group=counts.group, tier="device", what=what),
        BlockAllocator(counts.num_host_blocks, group=counts.group, tier="host", what=what),
    )


def open_pool(
    config: Any,
    *,
    num_sequences: int = 1,
    max_tokens: int | None = None,
    max_step_tokens: int | None = None,
    num_blocks: Mapping[str, int] | int | None = None,
    num_host_blocks: Mapping[str, int] | int = 0,
    plans: CachePlanSet | None = None,
    device: object = "cpu",
    kv_shapes: Mapping[int, KvShape] | None = None,
    state_shapes: Mapping[int, tuple[StateShape, ...]] | None = None,
    backend: str | None = None,
    registry: PluginRegistry | None = None,
    **planning: Any,
) -> CachePool:
    """Plan (unless ``plans`` are given), open an engine on ``device`` and share out its blocks.

    Give ``num_blocks``, or a workload: ``num_sequences`` of up to ``max_tokens``
    (:func:`~cachecore_transformers.blocks_for`). ``planning`` goes to
    :func:`~cachecore_transformers.plan_model`: ``block_size``, ``kernel_block_size``, ``dtype``, ``hints``.
    """
    if plans is None:
        planning.update(kv_shapes=kv_shapes, state_shapes=state_shapes, backend=backend, registry=registry)
        plans = plan_model(config, device=device, **planning)
    elif planning:
        raise TypeError(f"plans are given, so {', '.join(planning)} would change nothing; leave it out")
    if num_blocks is None:
        if max_tokens is None:
            raise PlanError("give num_blocks, or max_tokens (and num_sequences) to size the pool")
        num_blocks = blocks_for(
            plans, num_sequences=num_sequences, max_tokens=max_tokens, max_step_tokens=max_step_tokens
        )
    engine = open_engine(
        plans, num_blocks, device=device, host_counts=num_host_blocks, backend=backend, registry=registry
    )
    try:
        return CachePool(engine, describe_layers(config, kv_shapes, state_shapes))
    except BaseException:
        engine.close()
        raise
