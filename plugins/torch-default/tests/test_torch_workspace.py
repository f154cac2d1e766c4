"""Temporaries stay within their bound, however large a block is."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from cachecore_torch_default import StagedSwap, TorchBackend, block_copy, swap
from cachecore_torch_default.plugin import cachecore_register_block_copies
from cachecore_torch_default.segments import part_segments
from cachecore_torch_default.testing import (
    NUM_BLOCKS,
    NUM_HOST_BLOCKS,
    KindPolicy,
    draw_pairs,
    engine_and_oracle,
    plan_sets,
    tier_contents,
)
from hypothesis import given
from hypothesis import strategies as st

from cachecore import (
    BlockCacheGeometry,
    BlockCopyInfo,
    CachePlanSet,
    CacheTensorSpec,
    CopySegment,
    StandardLayoutPolicy,
    plan_from_specs,
)

BOUND = 64


def test_runs_are_dealt_out_and_long_ones_cut() -> None:
    short = CopySegment(0, 0, 1000, 0, 1, 500, 2000, 0, 24, 1)
    paged = CopySegment(0, 100, 1000, 50, 1, 600, 2000, 40, 36, 2)  # 72 bytes do not fit in 64: a page at a time

    parts = part_segments([short, short, paged, short], 64)

    first, second = paged._replace(num_pages=1), paged._replace(src_start=150, dst_start=640, num_pages=1)
    # 24 + 24 leave 16; 36 leave 28; 36 leave 28, and 24 more fit
    assert parts == ((short, short), (first,), (second, short))


def test_a_run_longer_than_the_bound_is_cut() -> None:
    run = CopySegment(0, 8, 1000, 0, 1, 16, 2000, 0, 150, 1)

    parts = part_segments([run], 64)

    # 150 = 64 + 64 + 22
    assert [(one.src_start, one.dst_start, one.nbytes) for (one,) in parts] == [
        (8, 16, 64),
        (72, 80, 64),
        (136, 144, 22),
    ]


def test_what_fits_stays_one_part() -> None:
    run = CopySegment(0, 0, 1000, 50, 1, 0, 2000, 40, 32, 2)

    assert part_segments([run], 64) == ((run,),)
    assert part_segments([], 64) == ((),)


class Taken:
    """The bytes of new memory that are alive at once, and those of the largest gather."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most_alive = self.largest_gather = 0
        alive: list[tuple[weakref.ref[torch.Tensor], int]] = []
        empty, index_select = torch.empty, torch.index_select

        def spy_on_empty(*args: Any, **kwargs: Any) -> torch.Tensor:
            taken = empty(*args, **kwargs)
            alive.append((weakref.ref(taken), taken.nbytes))
            self.most_alive = max(self.most_alive, sum(nbytes for ref, nbytes in alive if ref() is not None))
            return taken

        def spy_on_gather(*args: Any, out: torch.Tensor) -> torch.Tensor:
            self.largest_gather = max(self.largest_gather, out.nbytes)
            return index_select(*args, out=out)

        patch.setattr(torch, "empty", spy_on_empty)
        patch.setattr(torch, "index_select", spy_on_gather)


@given(drawn=plan_sets(), data=st.data())
def test_blocks_larger_than_the_bound_are_copied_in_parts(
    drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    pairs = draw_pairs(data.draw, NUM_BLOCKS, NUM_BLOCKS, disjoint=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_copy, "WORKSPACE_NBYTES", BOUND)
        taken = Taken(patch)
        real, oracle = engine_and_oracle(plans, TorchBackend(policy), "cpu", tuple(cachecore_register_block_copies()))

        for engine in (real, oracle):
            engine.copy_blocks(pairs).synchronize()

    assert tier_contents(real, host=False) == tier_contents(oracle, host=False)
    assert taken.most_alive <= BOUND


@pytest.mark.parametrize("swap_in", [False, True])
@given(drawn=plan_sets(), data=st.data())
def test_blocks_larger_than_the_bound_are_swapped_in_parts(
    swap_in: bool, drawn: tuple[CachePlanSet, KindPolicy], data: st.DataObject
) -> None:
    plans, policy = drawn
    ends = (NUM_HOST_BLOCKS, NUM_BLOCKS) if swap_in else (NUM_BLOCKS, NUM_HOST_BLOCKS)
    pairs = draw_pairs(data.draw, *ends, disjoint=False)
    staged = BlockCopyInfo(
        "staged", 500, lambda src, dst: None, lambda context: StagedSwap(context, host_is_src=swap_in)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "WORKSPACE_NBYTES", 4 * BOUND)  # a part takes a quarter
        taken = Taken(patch)
        real, oracle = engine_and_oracle(plans, TorchBackend(policy), "cpu", (staged,))

        for engine in (real, oracle):
            (engine.swap_in if swap_in else engine.swap_out)(pairs).synchronize()

    assert tier_contents(real, host=not swap_in) == tier_contents(oracle, host=not swap_in)
    assert taken.largest_gather <= 2 * BOUND


@pytest.mark.parametrize("swap_in", [False, True])
def test_a_block_whose_aligned_row_is_longer_than_the_staging_area_is_swapped(
    swap_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 9 runs of 1 byte, 16 apart on the host: a staging row takes 8 * 16 + 16 = 144 bytes, half the area has 128
    spec = CacheTensorSpec(name="flags", shape=(1,), dtype="uint8", alignment=16, row_ids=tuple(range(9)))
    plan = plan_from_specs([spec], BlockCacheGeometry(4), StandardLayoutPolicy())
    staged = BlockCopyInfo(
        "staged", 500, lambda src, dst: None, lambda context: StagedSwap(context, host_is_src=swap_in)
    )
    monkeypatch.setattr(swap, "WORKSPACE_NBYTES", 4 * BOUND)
    real, oracle = engine_and_oracle(CachePlanSet((plan,), "cpu", "test"), TorchBackend(), "cpu", (staged,))

    for engine in (real, oracle):
        (engine.swap_in if swap_in else engine.swap_out)({0: 1, 2: 0}).synchronize()

    assert tier_contents(real, host=not swap_in) == tier_contents(oracle, host=not swap_in)
