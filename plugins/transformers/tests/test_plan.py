"""Plans and block counts of transformers models."""

from __future__ import annotations

import pytest
import torch
import transformers
from cachecore_transformers import KvShape, blocks_for, plan_model
from twins import tiny_config

from cachecore import CachePlanSet, PlanError


def test_smollm2_block_is_every_layer_of_16_tokens():
    config = transformers.LlamaConfig(
        num_hidden_layers=30, hidden_size=576, num_attention_heads=9, num_key_value_heads=3, dtype="float32"
    )

    plan = plan_model(config).only()

    # 30 layers * (K and V) * 16 tokens * 3 heads * 64 dims * 4 bytes
    assert plan.block_nbytes() == 30 * 2 * 16 * 3 * 64 * 4 == 737_280
    assert plan.layout.padding_nbytes == 0


def test_a_mixed_model_plans_its_groups_apart_and_round_trips():
    plans = plan_model(tiny_config("gemma3"), dtype="float32", block_size=8, kernel_block_size=4)

    assert plans.names == ("sliding", "full")
    assert [plan.group.window for plan in plans] == [12, None]
    assert [spec.row_ids for spec in plans["sliding"].specs] == [(0, 2), (0, 2)]
    assert plans["full"].geometry.pages_per_block == 2
    assert CachePlanSet.loads(plans.dumps()) == plans


def test_an_mla_row_is_the_latent_beside_its_rotary_part():
    plan = plan_model(tiny_config("deepseek_v3"), dtype=torch.bfloat16, block_size=4).only()

    assert [spec.shape for spec in plan.specs] == [(4, 1, 32), (4, 1, 0)]  # 24 + 8, and no values
    assert plan.specs[0].shard.replicated


def test_layers_of_two_shapes_in_one_group_are_tensors_of_one_plan():
    plan = plan_model(tiny_config("llama"), dtype="float32", kv_shapes={3: KvShape(4, 16, 8)}).only()

    assert [(spec.name, spec.row_ids) for spec in plan.specs] == [
        ("k_cache", (0, 1, 2)),
        ("v_cache", (0, 1, 2)),
        ("k_cache", (3,)),
        ("v_cache", (3,)),
    ]


def test_a_configuration_without_a_dtype_is_refused():
    with pytest.raises(PlanError, match="names no dtype; pass dtype="):
        plan_model(tiny_config("llama"))


def test_bad_geometry_is_refused():
    with pytest.raises(PlanError, match="kernel_block_size 8"):
        plan_model(tiny_config("llama"), dtype="float32", block_size=12, kernel_block_size=8)


def test_blocks_for_a_workload():
    plans = plan_model(tiny_config("gemma3"), dtype="float32", block_size=4)

    # full: 40 tokens are 10 blocks. sliding: 11 tokens behind and 5 new ones lie in at most 4 + 1 blocks.
    # One more each for a fork, for 3 sequences.
    assert blocks_for(plans, num_sequences=3, max_tokens=40, max_step_tokens=5) == {"full": 33, "sliding": 18}
    # one call of 40 tokens: the window sees all of them at once
    assert blocks_for(plans, num_sequences=1, max_tokens=40) == {"full": 11, "sliding": 11}
