"""``generate()`` on blocks gives, bit for bit, the logits of plain transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cachecore_transformers import CachecoreCache, plan_model
from twins import (
    FORKS,
    MODELS,
    MODES,
    NUM_NEW,
    Twins,
    assert_equal_runs,
    poison,
    prompts,
    reference,
    run,
    tiny_model,
    twins,
)

from cachecore import LayoutHints
from cachecore.layout_kinds import block_major_layout


@pytest.mark.parametrize("pages_per_block", [1, 2, 4])
@pytest.mark.parametrize("num_sequences", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_generate_equals_plain_transformers(name, mode, num_sequences, pages_per_block, make_pool):
    total = num_sequences * FORKS[mode]
    host_blocks = dict.fromkeys(plan_model(tiny_model(name).config).names, total * 12)
    pool = make_pool(
        name,
        num_sequences=2 * total,  # room for blocks to come back elsewhere
        block_size=4 * pages_per_block,
        kernel_block_size=4,
        max_tokens=21 + NUM_NEW,
        num_host_blocks=host_blocks,
    )
    cache = CachecoreCache(pool)

    def swap() -> None:
        gone = {group: [block for block, _ in pairs] for group, pairs in cache.swap_out().items()}
        poison(pool)
        back = {group: [block for _, block in pairs] for group, pairs in cache.swap_in().items()}
        assert all(set(back[group]).isdisjoint(gone[group]) for group in gone), "blocks came back where they were"

    got = run(tiny_model(name), cache, mode, num_sequences, swap)

    assert_equal_runs(got, reference(name, mode, num_sequences))
    cache.release()
    assert not any(pool.num_used().values())
    assert not any(pool.num_used(host=True).values())


@pytest.mark.parametrize("name", MODELS)
def test_prefill_in_pieces_and_steps_of_several_tokens(name, make_pool):
    pool = make_pool(name, num_sequences=2)
    both = Twins(name, pool)
    inputs = prompts(2)

    for start, stop in ((0, 5), (5, 6), (6, 19), (19, 21)):
        both.call(**{key: value[:, start:stop] for key, value in inputs.items()})
    both.steps(3, tokens=4)

    assert both.blocks.get_seq_length() == both.plain.get_seq_length() == 33


def whole_blocks(plans):
    """The same plans with entries that are whole blocks, as a vendor's policy may choose."""
    changed = [replace(plan, layout=block_major_layout(plan.specs, plan.pages_per_unit)) for plan in plans]
    return replace(plans, groups=tuple(changed))


@pytest.mark.parametrize("layout", ["page-major", "block-major"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_layouts_whose_blocks_are_one_run(name, layout, make_pool):
    plans = plan_model(
        tiny_model(name).config,
        dtype=torch.float32,
        block_size=8,
        kernel_block_size=4,
        hints=LayoutHints(one_run_per_block=True),
    )
    if layout == "block-major":
        plans = whole_blocks(plans)
    assert {(plan.layout.kind, plan.layout.pages_per_entry) for plan in plans} == {
        (layout, 2 if layout == "block-major" else 1)
    }
    pool = make_pool(name, plans=plans, num_sequences=4)

    both = twins(name, pool)
    both.steps(4)
    both.select([1, 1, 0])
    both.steps(9)
