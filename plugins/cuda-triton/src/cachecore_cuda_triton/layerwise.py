"""Swap-in by layers: the model starts on its first layers while the later ones are still arriving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cachecore import (
    BlockCacheCopy,
    BlockCopyInfo,
    BlockPairs,
    CacheLookupError,
    CachePlanSet,
    CacheTensorSpec,
    Completion,
    CopyContext,
    CopySegment,
    CopySide,
    PlanError,
)
from cachecore.transfer import row_segments
from cachecore_cuda_triton.plugin import PRIORITY, probe_swap

__all__ = [
    "LayerArrivals",
    "LayerwiseSwapIn",
    "Rows",
    "layers_of",
    "layerwise_swap_in",
    "rows_by_layer",
    "segments_of_rows",
]

Rows = tuple[tuple[int, int], ...]
"""``(spec, row)`` of everything that arrives together."""

_NUM_STEPS = 4
"""Steps when nothing is said: the model waits for the first quarter; more cost more CPU. Measured: ``NOTES.md``."""


class LayerArrivals:
    """Completion of a whole swap-in; :meth:`layer` is that of one layer."""

    __slots__ = ("_by_layer", "_steps")

    def __init__(self, steps: Sequence[Completion], by_layer: Mapping[int, int]) -> None:
        self._steps = steps
        self._by_layer = by_layer

    def layer(self, layer: int) -> Completion:
        """When the blocks of ``layer`` (a global layer number) have arrived."""
        try:
            return self._steps[self._by_layer[layer]]
        except KeyError:
            known = ", ".join(map(str, sorted(self._by_layer)))
            raise CacheLookupError(f"layer {layer} has no rows in this group; its layers are {known}") from None

    def wait(self, stream: object | None = None) -> None:
        """Make ``stream`` (None: the caller's current one) wait for every layer; never blocks the host."""
        for step in self._steps:
            step.wait(stream)

    def synchronize(self) -> None:
        """Block the host until every layer is there."""
        for step in self._steps:
            step.synchronize()

    def done(self) -> bool:
        """Whether every layer is there; never blocks."""
        return all(step.done() for step in self._steps)


class LayerwiseSwapIn(BlockCacheCopy):
    """One swap a step of layers, in order, all on the streams of the swap that ``build`` makes."""

    def __init__(
        self,
        context: CopyContext,
        layers: Mapping[int, Rows],
        *,
        layers_per_step: int,
        build: Callable[[CopyContext], BlockCacheCopy],
    ) -> None:
        order = sorted(layers)
        steps = [order[start : start + layers_per_step] for start in range(0, len(order), layers_per_step)]
        self._by_layer = {layer: number for number, step in enumerate(steps) for layer in step}
        self._copies = [
            build(
                replace(context, segments=segments_of_rows(context, (row for layer in step for row in layers[layer])))
            )
            for step in steps
        ]
        self.path = f"{self._copies[0].path}:layers-by-{layers_per_step}" if self._copies else "nothing"
        self.workspace_nbytes = max((copy.workspace_nbytes for copy in self._copies), default=0)

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> LayerArrivals:
        """Queue every step; returns at once."""
        return LayerArrivals([copy(pairs, after) for copy in self._copies], self._by_layer)


def layerwise_swap_in(plans: CachePlanSet, *, layers_per_step: int | None = None) -> BlockCopyInfo:
    """A copy record for swap-ins whose completion tells layers apart.

    Put it before the registry's records, and the engine's ``swap_in`` returns :class:`LayerArrivals`::

        copies = (layerwise_swap_in(plans), *registry.copy_infos())
        engine = CacheEngine(plans, counts, backend=backend, copies=copies, host_counts=host_counts)
        arrivals = engine.swap_in(pairs)
        for layer in range(num_layers):
            arrivals.layer(layer).wait()  # the current stream waits for this layer only
            ...

    ``layers_per_step`` layers arrive together; when left out, a quarter of the group's. Few layers a
    step let the model start sooner, and make the pieces that the link carries shorter.
    """
    if layers_per_step is not None and layers_per_step < 1:
        raise PlanError(f"layers_per_step is {layers_per_step}; expected 1 or more")

    def probe(src: CopySide, dst: CopySide) -> str | None:
        if src.device.type != "cpu":
            return "serves swaps in only"
        if not any(plan.layout == dst.layout for plan in plans.blocks):
            return "the device side belongs to no block group of the plans it was made for"
        return probe_swap(src, dst)

    def build(context: CopyContext) -> BlockCacheCopy:
        from cachecore_cuda_triton.swap import CudaSwap

        layers = layers_of(plans, context)
        step = layers_per_step or -(-len(layers) // _NUM_STEPS) or 1
        return LayerwiseSwapIn(context, layers, layers_per_step=step, build=partial(CudaSwap, host_is_src=True))

    return BlockCopyInfo("cuda-layerwise-swap-in", PRIORITY + 10, probe, build)


def layers_of(plans: CachePlanSet, context: CopyContext) -> dict[int, Rows]:
    """Rows by layer of the group that ``context`` moves: of that name, since groups may have equal layouts."""
    alike = [plan for plan in plans.blocks if plan.layout == context.dst.layout]
    return rows_by_layer(next((plan for plan in alike if plan.name == context.group), alike[0]).specs)


def rows_by_layer(specs: Iterable[CacheTensorSpec]) -> dict[int, Rows]:
    """``(spec, row)`` of each layer, in the order of the specs."""
    layers: dict[int, Rows] = {}
    for index, spec in enumerate(specs):
        for row, layer in enumerate(spec.row_ids):
            layers[layer] = (*layers.get(layer, ()), (index, row))
    return layers


def segments_of_rows(context: CopyContext, rows: Iterable[tuple[int, int]]) -> tuple[CopySegment, ...]:
    """The bytes of some rows of every block, as :attr:`CopyContext.segments` are of all."""
    src, dst = context.src, context.dst
    pages = src.num_entries * src.layout.pages_per_entry // context.num_src_blocks
    return row_segments(src.layout, src.num_entries, dst.layout, dst.num_entries, pages, rows)
