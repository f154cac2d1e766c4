"""A layout that the core does not have: one pool for each band of layers."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from cachecore import (
    BlockCacheGeometry,
    CacheLayout,
    CacheSlice,
    CacheTensorSpec,
    LayoutHints,
    PoolSpec,
    StandardLayoutPolicy,
)

BAND = 4
"""Layers a pool."""


class BandedPolicy(StandardLayoutPolicy):
    """K and V of a layer side by side, as in a packed pool, but four layers a pool; other caches as usual."""

    name = "banded"
    version = "1"

    def select_block_layout(
        self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry, hints: LayoutHints
    ) -> CacheLayout:
        """Bands where all caches have a row in every layer, else what the core would do."""
        alike = len({spec.num_rows for spec in specs}) == 1 and not any(spec.per_row_contiguous for spec in specs)
        if not alike or hints.one_run_per_block:
            return super().select_block_layout(specs, geometry, hints)
        return banded_layout(specs, hints.base_alignment)


def banded_layout(specs: Sequence[CacheTensorSpec], base_alignment: int) -> CacheLayout:
    """``uint8[layers of the band, entries, caches side by side]`` for each band."""
    offsets, end = [], 0
    for spec in specs:
        end = _round_up(end, spec.alignment)
        offsets.append(end)
        end += spec.page_nbytes
    align = max(spec.alignment for spec in specs)
    multiple = lcm(*(spec.page_stride_multiple for spec in specs))
    inner, num_rows = _round_up(end, lcm(align, multiple)), specs[0].num_rows
    pools = tuple(
        PoolSpec(min(BAND, num_rows - first), inner, max(base_alignment, align), align, multiple)
        for first in range(0, num_rows, BAND)
    )
    slices = tuple(
        tuple(CacheSlice(row // BAND, row % BAND, offset, spec.page_nbytes) for row in range(num_rows))
        for spec, offset in zip(specs, offsets, strict=True)
    )
    return CacheLayout("banded", pools, slices)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
