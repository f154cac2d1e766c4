"""The pure half of a backend: which layout, axis order and storage dtype its device wants.

A policy imports no array library and touches no device, so a laptop plans for a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from cachecore.errors import PlanError
from cachecore.layout import NATIVE_ALIGNMENT, CacheLayout
from cachecore.layout_kinds import (
    BASE_ALIGNMENT,
    block_major_layout,
    composite_layout,
    contiguous_layout,
    packed_layout,
    packed_state_layout,
    page_major_layout,
    row_layout,
)
from cachecore.meaning import positive
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec

__all__ = ["KvStorage", "LayoutHints", "LayoutPolicy", "StandardLayoutPolicy"]


@dataclass(frozen=True, slots=True)
class LayoutHints:
    """What a caller such as a transfer needs of a layout.

    ``one_run_per_block`` asks for a block that is one contiguous run on the device, which a swap
    moves as fast as the link allows; ``base_alignment`` (bytes, a power of two) for the start of
    every pool, 2 MiB for some transfers.
    """

    one_run_per_block: bool = False
    base_alignment: int = BASE_ALIGNMENT

    def __post_init__(self) -> None:
        if not isinstance(self.one_run_per_block, bool):
            raise TypeError(f"one_run_per_block must be a bool, not {self.one_run_per_block!r}")
        alignment = positive(self.base_alignment, "base_alignment")
        if alignment & (alignment - 1):
            raise PlanError(f"base_alignment is {alignment}; expected a positive power of two, in bytes")
        object.__setattr__(self, "base_alignment", alignment)


@dataclass(frozen=True, slots=True)
class KvStorage:
    """How a device stores a K/V format.

    ``dtype`` is None for the model's own; ``k_aux`` and ``v_aux`` are the auxiliary values that the
    format keeps per token and head (2 for scale and zero, 0 for none), in the model's dtype.
    ``k_pack`` and ``v_pack`` count elements in one stored element.
    """

    dtype: str | None = None
    k_aux: int = 0
    v_aux: int = 0
    k_pack: int = 1
    v_pack: int = 1


_STORAGE = {
    "plain": KvStorage(),
    "int8_asym": KvStorage("uint8", 2, 2),
    "int4_asym": KvStorage("uint8", 2, 2, 2, 2),
    "turbo": KvStorage("uint8", 2, 1, 2, 4),
    "fp8": KvStorage("float8_e4m3fn"),
    "fp8_e5m2": KvStorage("float8_e5m2"),
    "fp8_ds_mla": KvStorage("float8_e4m3fn"),
}


class LayoutPolicy(ABC):
    """What a vendor overrides to choose the layout; everything else follows from it.

    ``name`` and ``version`` are recorded in every plan: an engine whose backend has another policy
    refuses the plan. Raise the version when a new release lays out the same specs differently.
    """

    name: str
    version: str

    @abstractmethod
    def select_block_layout(
        self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry, hints: LayoutHints
    ) -> CacheLayout:
        """The device layout of one block group."""

    @abstractmethod
    def select_state_layout(self, specs: Sequence[CacheTensorSpec], hints: LayoutHints) -> CacheLayout:
        """The device layout of one state group; an entry is a slot."""

    def select_host_layout(
        self,
        specs: Sequence[CacheTensorSpec],
        geometry: BlockCacheGeometry,
        device_layout: CacheLayout,
        hints: LayoutHints,
    ) -> CacheLayout:
        """The device's own layout where a block is one run there, which then moves as one; else block-major.

        Unless one run was asked for, padding of more than a sixteenth and starts coarser than every buffer has
        anyway are not taken over: the host tier would hold fewer blocks.
        """
        if _moves_whole(device_layout, hints):
            return device_layout
        return block_major_layout(
            specs, geometry.pages_per_block, like=device_layout, base_alignment=hints.base_alignment
        )

    def select_state_host_layout(
        self, specs: Sequence[CacheTensorSpec], device_layout: CacheLayout, hints: LayoutHints
    ) -> CacheLayout:
        """The host tier's layout of a state group, by the same rule: a slot is one contiguous run."""
        if _moves_whole(device_layout, hints):
            return device_layout
        return block_major_layout(specs, 1, like=device_layout, base_alignment=hints.base_alignment)

    def kv_order(self, format: str) -> tuple[str, ...]:
        """Axis order of a K/V page of ``format``: token-major, unless a device wants heads first."""
        return ("token", "head", "other")

    def storage(self, format: str) -> KvStorage | str:
        """How ``format`` is stored, or the reason why this device cannot hold it."""
        known = _STORAGE.get(format)
        return known if known is not None else f"K/V format {format!r} is unknown; known are {', '.join(_STORAGE)}"

    def check_geometry(self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry) -> None:
        """Raise :class:`~cachecore.errors.PlanError` for a geometry the device's kernels cannot take."""
        return None


class StandardLayoutPolicy(LayoutPolicy):
    """Standard K/V packed, operator caches a row pool each, contiguous where asked; mixed plans composite.

    The spec list is split into consecutive runs of one kind, so views stay in spec order.
    """

    name = "standard"
    version = "2"

    def select_block_layout(
        self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry, hints: LayoutHints
    ) -> CacheLayout:
        """Packed, row and contiguous runs; one page-major pool when the caller needs one run a block."""
        if hints.one_run_per_block:
            dense = [spec.name for spec in specs if spec.per_row_contiguous]
            if dense:
                raise PlanError(
                    f"cache {dense[0]!r} wants contiguous rows, so a block cannot be one run (one_run_per_block); "
                    "leave the hint out, or gather blocks into one run on the way",
                    cache=dense[0],
                )
            return page_major_layout(specs, base_alignment=hints.base_alignment)
        children = [
            _MAKERS[kind](tuple(run), base_alignment=hints.base_alignment)
            for (kind, _), run in groupby(specs, key=_kind_of)
        ]
        return composite_layout(children)

    def select_state_layout(self, specs: Sequence[CacheTensorSpec], hints: LayoutHints) -> CacheLayout:
        """One packed pool whose entry is a slot."""
        return packed_state_layout(specs, base_alignment=hints.base_alignment)


_LEAST_ENTRY = 16
"""How many times its padding a device's entry must be, for the host tier to take it as it is unasked."""


def _moves_whole(layout: CacheLayout, hints: LayoutHints) -> bool:
    """Whether the host tier takes the device's ``layout``: one run, in a pool that starts as ``hints`` ask."""
    if layout.num_runs != 1:
        return False
    (start,) = (pool.base_alignment for pool in layout.pools if pool.entry_nbytes)
    if start < hints.base_alignment:
        return False
    if hints.one_run_per_block:
        return True
    aligned_at_no_cost = start <= max(hints.base_alignment, NATIVE_ALIGNMENT)
    return aligned_at_no_cost and layout.padding_nbytes * _LEAST_ENTRY <= layout.entry_nbytes


_MAKERS = {"contiguous": contiguous_layout, "row": row_layout, "packed": packed_layout}


def _kind_of(spec: CacheTensorSpec) -> tuple[str, int]:
    if spec.per_row_contiguous:
        return "contiguous", 0
    if spec.consumer_rows is not None:
        return "row", 0
    return "packed", spec.num_rows  # a packed pool needs equal row counts
