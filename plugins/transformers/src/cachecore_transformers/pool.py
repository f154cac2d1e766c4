"""One engine and its free blocks, shared by any number of caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from cachecore import CacheEngine, CachePlanSet, PlanError, PluginError, PluginRegistry, open_engine
from cachecore.plan import BlockCachePlan
from cachecore_transformers.blocks import BlockAllocator
from cachecore_transformers.models import KvShape, LayerCache, describe_layers
from cachecore_transformers.plan import blocks_for, plan_model

__all__ = ["CachePool", "Group", "open_pool"]


@dataclass(frozen=True, slots=True)
class Group:
    """One group of a pool: its plan, its device, and the free blocks of both tiers."""

    plan: BlockCachePlan
    device: torch.device
    allocator: BlockAllocator
    host_allocator: BlockAllocator

    @property
    def page_order(self) -> tuple[int, ...] | None:
        """The axes that turn a row view into ``(entries, [pages,] tokens, heads, dim)``; None where it is so."""
        axes = self.plan.specs[0].axes
        if axes == ("token", "head", "other"):
            return None
        lead = 1 if self.plan.layout.pages_per_entry == 1 else 2
        return (*range(lead), *(lead + axes.index(axis) for axis in ("token", "head", "other")))

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.plan.geometry.logical_block_size

    @property
    def page_size(self) -> int:
        """Tokens in a kernel page."""
        return self.plan.geometry.page_size

    @property
    def entry_tokens(self) -> int:
        """Tokens in an entry of the device layout: a page's, or a whole block's."""
        return self.page_size * self.plan.layout.pages_per_entry

    @property
    def window(self) -> int | None:
        """Tokens that a query sees, itself included; None for all."""
        return self.plan.group.window


class CachePool:
    """The blocks of one running engine, handed out to caches.

    ``layers`` describe the model's layers in order (:func:`~cachecore_transformers.describe_layers`).
    The pool owns the engine: :meth:`close` closes it.
    """

    def __init__(self, engine: CacheEngine[torch.Tensor], layers: tuple[LayerCache, ...]) -> None:
        self.engine = engine
        self.layers = layers
        stats = {group.group: group for group in engine.stats().groups}
        places = {layer.group: layer.layer for layer in layers if layer.group is not None}
        planned = {plan.name for plan in engine.plans.blocks}
        if set(places) != planned:
            raise PlanError(
                f"the engine has groups {sorted(planned)}, but the model's layers need {sorted(places)}; "
                "plan with plan_model() of the same configuration"
            )
        self.groups: dict[str, Group] = {}
        for plan in engine.plans.blocks:
            row = engine.block_caches.layer("k_cache", places[plan.name])
            if not isinstance(row, torch.Tensor):
                raise PluginError(
                    f"backend {engine.backend.name!r} makes views of type {type(row).__name__}; transformers needs "
                    "torch tensors, so choose a torch backend such as cachecore-cpu"
                )
            counts = stats[plan.name]
            self.groups[plan.name] = Group(
                plan,
                row.device,
                BlockAllocator(counts.num_blocks, group=plan.name, tier="device"),
                BlockAllocator(counts.num_host_blocks, group=plan.name, tier="host"),
            )

    def num_free(self, *, host: bool = False) -> dict[str, int]:
        """Free blocks of every group."""
        return {
            name: (group.host_allocator if host else group.allocator).num_free for name, group in self.groups.items()
        }

    def num_used(self, *, host: bool = False) -> dict[str, int]:
        """Blocks of every group that some cache holds; all zero once every cache was released."""
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
        plans = plan_model(config, device=device, kv_shapes=kv_shapes, backend=backend, registry=registry, **planning)
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
        return CachePool(engine, describe_layers(config, kv_shapes))
    except BaseException:
        engine.close()
        raise
