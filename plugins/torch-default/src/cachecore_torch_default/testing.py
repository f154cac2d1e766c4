"""For tests of backends built on :class:`TorchBackend`: plans drawn at random, and the core's oracle beside them.

Needs hypothesis. A vendor's test draws a plan and pairs, does the same to both engines of
:func:`engine_and_oracle`, and compares :func:`tier_contents`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from cachecore import (
    BlockCacheGeometry,
    BlockCopyInfo,
    BlockPairs,
    ByteBackend,
    CacheEngine,
    CacheLayout,
    CachePlanSet,
    CacheTensorSpec,
    LayoutHints,
    StandardLayoutPolicy,
    plan_from_specs,
)
from cachecore.layout_kinds import (
    block_major_layout,
    contiguous_layout,
    packed_layout,
    page_major_layout,
    row_layout,
)
from cachecore.reference import BYTE_COPY
from cachecore_torch_default.backend import TorchBackend

__all__ = [
    "NUM_BLOCKS",
    "NUM_HOST_BLOCKS",
    "KindPolicy",
    "draw_pairs",
    "draw_swaps",
    "engine_and_oracle",
    "fill_tier",
    "plan_sets",
    "spec_lists",
    "tier_contents",
]

KINDS = ("packed", "row", "contiguous", "page-major", "block-major", "standard")
"""Layouts that either tier may have."""

NUM_BLOCKS, NUM_HOST_BLOCKS = 6, 5
"""Blocks of both engines of :func:`engine_and_oracle`."""


class KindPolicy(StandardLayoutPolicy):
    """Lays out each tier as one atomic layout, so that any two can be paired."""

    name = "kind"

    def __init__(self, kind: str, host_kind: str) -> None:
        self.kinds = kind, host_kind

    def select_block_layout(
        self, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry, hints: LayoutHints
    ) -> CacheLayout:
        """The first kind."""
        return self._lay_out(self.kinds[0], specs, geometry, hints)

    def select_host_layout(
        self,
        specs: Sequence[CacheTensorSpec],
        geometry: BlockCacheGeometry,
        device_layout: CacheLayout,
        hints: LayoutHints,
    ) -> CacheLayout:
        """The second kind."""
        return self._lay_out(self.kinds[1], specs, geometry, hints)

    def _lay_out(
        self, kind: str, specs: Sequence[CacheTensorSpec], geometry: BlockCacheGeometry, hints: LayoutHints
    ) -> CacheLayout:
        if kind == "block-major":
            return block_major_layout(specs, geometry.pages_per_block)
        if kind == "standard" or (kind == "packed" and len({spec.num_rows for spec in specs}) > 1):
            return StandardLayoutPolicy.select_block_layout(self, specs, geometry, hints)
        return _MAKERS[kind](specs)


_MAKERS = {
    "packed": packed_layout,
    "row": row_layout,
    "contiguous": contiguous_layout,
    "page-major": page_major_layout,
}


@st.composite
def spec_lists(draw: st.DrawFn) -> list[CacheTensorSpec]:
    """One to three specs with odd sizes, every item size, empty payloads and unequal row counts."""
    specs = []
    for number in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(["uint8", "float8_e4m3fn", "bfloat16", "float32", "int64"]))
        size = {"uint8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float32": 4, "int64": 8}[dtype]
        rows = draw(st.integers(1, 4))
        specs.append(
            CacheTensorSpec(
                name=f"cache_{number}",
                shape=(draw(st.integers(1, 5)), draw(st.integers(0, 9))),
                dtype=dtype,
                alignment=size * draw(st.sampled_from([1, 2, 16])),
                page_stride_multiple=draw(st.sampled_from([1, 3])) * size,
                row_ids=tuple(range(rows)),
                consumer_rows=tuple(range(rows)) if draw(st.booleans()) else None,
            )
        )
    return specs


@st.composite
def plan_sets(draw: st.DrawFn) -> tuple[CachePlanSet, KindPolicy]:
    """A plan whose two tiers have any two layouts, with one to three pages a block."""
    kinds = st.sampled_from(KINDS)
    policy = KindPolicy(draw(kinds), draw(kinds))
    geometry = BlockCacheGeometry(4 * draw(st.integers(1, 3)), 4)
    plan = plan_from_specs(draw(spec_lists()), geometry, policy)
    return CachePlanSet((plan,), "cpu", "test"), policy


def fill_tier(engine: CacheEngine[Any], seed: int, *, host: bool) -> None:
    """Every byte of one tier, padding included, from ``seed``."""
    allocation = engine.allocation(host=host)
    generator = torch.Generator().manual_seed(seed + host)
    for number, _ in enumerate(allocation.layout.pools):
        nbytes = allocation.layout.pool_nbytes(number, allocation.num_entries)
        data = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
        engine.backend.write(allocation, number, 0, bytes(data.tolist()))


def tier_contents(engine: CacheEngine[Any], *, host: bool) -> list[bytes]:
    """Every byte of one tier."""
    allocation = engine.allocation(host=host)
    sizes = [allocation.layout.pool_nbytes(index, allocation.num_entries) for index, _ in enumerate(allocation.pools)]
    return [engine.backend.read(allocation, number, 0, nbytes) for number, nbytes in enumerate(sizes)]


def draw_pairs(draw: st.DrawFn, num_src: int, num_dst: int, *, disjoint: bool) -> BlockPairs:
    """Pairs of a swap, or (``disjoint``) of a copy within one tier; sources may repeat."""
    dst = draw(st.lists(st.integers(0, num_dst - 1), unique=True, max_size=num_dst - 1 if disjoint else num_dst))
    left = [block for block in range(num_src) if not (disjoint and block in dst)]
    return BlockPairs([draw(st.sampled_from(left)) for _ in dst], dst)


def draw_swaps(draw: st.DrawFn) -> tuple[BlockPairs, BlockPairs]:
    """Pairs out and pairs in, between the tiers that :func:`engine_and_oracle` opens."""
    out = draw_pairs(draw, NUM_BLOCKS, NUM_HOST_BLOCKS, disjoint=False)
    return out, draw_pairs(draw, NUM_HOST_BLOCKS, NUM_BLOCKS, disjoint=False)


def engine_and_oracle(
    plans: CachePlanSet, backend: TorchBackend, device: object, copies: Sequence[BlockCopyInfo]
) -> tuple[CacheEngine[Any], CacheEngine[Any]]:
    """An engine on ``backend`` and one on :class:`ByteBackend`, both tiers of both filled alike."""
    real: CacheEngine[Any] = CacheEngine(
        plans, NUM_BLOCKS, backend=backend, copies=copies, device=device, host_counts=NUM_HOST_BLOCKS
    )
    oracle: CacheEngine[Any] = CacheEngine(
        plans,
        NUM_BLOCKS,
        backend=ByteBackend(backend.policy),
        copies=(BYTE_COPY,),
        device="null",
        host_counts=NUM_HOST_BLOCKS,
    )
    for engine in (real, oracle):
        fill_tier(engine, 1, host=False)
        fill_tier(engine, 1, host=True)
    return real, oracle
