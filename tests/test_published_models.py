"""Cache sizes of published models, worked by hand from the shapes in their configurations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import POLICY, Operator

from cachecore import (
    BlockCacheGeometry,
    BlockCacheRequest,
    GroupSpec,
    KvCacheConfig,
    Plane,
    StateCacheRequest,
    build_block_cache_plan,
    plan_from_states,
    sizing,
)

GIB = 1 << 30
MODELS = json.loads((Path(__file__).parent / "data" / "published_models.json").read_text(encoding="utf-8"))
RUNS = [
    pytest.param({**{k: v for k, v in model.items() if k != "runs"}, **run}, id=f"{model['name']}-{number}")
    for model in MODELS
    for number, run in enumerate(model["runs"])
]


def kv(**facts):
    names = ("layers", "num_kv_heads", "head_dim", "dtype", "quant_policy", "tp_size", "latent_dim", "rope_dim")
    return KvCacheConfig(**{name: facts[name] for name in (*names, "sparse_mla", "group") if name in facts})


def plan(kv_configs, block_size, operators=(), **more):
    return build_block_cache_plan(
        operators, kv=kv_configs, geometry=BlockCacheGeometry(block_size), device="cuda", policy=POLICY, **more
    )


def planned(facts):
    """The model's K/V, its index keys where it has some, and its draft's layers in the same group."""
    layers = facts["layers"] + facts.get("draft_layers", 0)
    index = []
    if "index_token_nbytes" in facts:
        index = [
            Operator(
                BlockCacheRequest(
                    name="index",
                    shape=(facts["block_size"], facts["index_token_nbytes"]),
                    dtype="uint8",
                    per_row_contiguous=True,
                    axes=("token", "other"),
                    format="dsa_index",
                    planes=(Plane("keys", 128), Plane("scales", 4)),
                    layer=layer,
                )
            )
            for layer in range(layers)
        ]
    return plan(kv(**{**facts, "layers": layers}), facts["block_size"], index)


@pytest.mark.parametrize("facts", RUNS)
def test_bytes_of_a_page_and_a_block(facts):
    block = planned(facts).only()

    pages = {spec.name: spec.page_nbytes for spec in block.specs}
    if "page_nbytes" in facts:
        assert pages["k_cache"] + pages["v_cache"] == facts["page_nbytes"]
    assert pages.get("index") == facts.get("index_page_nbytes")
    assert block.block_nbytes() == facts["block_nbytes"]
    assert block.layout.padding_nbytes == 0


@pytest.mark.parametrize("facts", [run for run in RUNS if "blocks_in_20_gib" in run.values[0]])
def test_blocks_that_fit_20_gib(facts):
    assert sizing.fit(planned(facts), memory_nbytes=20 * GIB) == {"full": facts["blocks_in_20_gib"]}


@pytest.mark.parametrize("facts", [run for run in RUNS if "request_tokens" in run.values[0]])
def test_blocks_of_one_request(facts):
    assert sizing.request_units(planned(facts).only(), facts["request_tokens"]) == facts["request_blocks"]


@pytest.mark.parametrize("facts", [run for run in RUNS if "num_tensors" in run.values[0]])
def test_tensors_with_bytes(facts):
    # 61 latents and 61 index pages; the zero-width V is no tensor to move or register
    assert sum(spec.num_rows for spec in planned(facts).only().specs if spec.page_nbytes) == facts["num_tensors"]


def test_a_draft_model_beside_its_target_gives_the_same_count():
    llama = {"num_kv_heads": 8, "head_dim": 128, "dtype": "bfloat16"}
    target, draft = plan(kv(layers=32, **llama), 16), plan(kv(layers=1, **llama), 16)

    # 33 layers * 65,536 bytes a block; floor(20 GiB / 2,162,688)
    assert sizing.fit([target, draft], memory_nbytes=20 * GIB) == {"full": 9929}


def test_two_pipeline_stages_agree_on_the_smaller_count():
    # Llama 3.1 8B on two ranks of 10 GiB, 17 and 15 layers of 65,536 bytes a block
    stages = [
        plan(kv(layers=layers, num_kv_heads=8, head_dim=128, dtype="bfloat16"), 16)
        for layers in (range(17), range(17, 32))
    ]
    fitted = [sizing.fit(stage, memory_nbytes=10 * GIB)["full"] for stage in stages]
    agreed = min(fitted)

    assert [stage.only().block_nbytes() for stage in stages] == [1114112, 983040]
    assert (agreed, fitted[0]) == (9637, 9637)
    assert [stage.only().nbytes(agreed) for stage in stages] == [10736697344, 9473556480]
    assert [sizing.fit(stage, memory_nbytes=10 * GIB, num_blocks=agreed)["full"] for stage in stages] == [9637, 9637]


def test_gpt_oss_120b_bounds_every_other_layer_by_its_window():
    geometry = BlockCacheGeometry(16)
    shape = {"num_kv_heads": 8, "head_dim": 64, "dtype": "bfloat16"}
    plans = plan(
        [kv(layers=range(1, 36, 2), **shape), kv(layers=range(0, 36, 2), group="sliding", **shape)],
        16,
        groups=[GroupSpec("sliding", geometry, window=128)],
    )

    # a page of one layer: 2 * 16 * 8 * 64 * 2 = 32,768 bytes; 18 layers of each kind
    assert [group.block_nbytes() for group in plans] == [589824, 589824]
    # 131,072 / 16 full blocks; ceil((127 + 8,192) / 16) + 1 blocks of the window
    held = sizing.request_demand(plans, 131072, in_flight_tokens=8192)
    assert held == {"full": 8192, "sliding": 521}
    assert sizing.reserved_nbytes(plans, held) == 5139136512


def test_qwen3_next_80b_keeps_blocks_and_states_in_pools_of_their_own():
    attention = plan(kv(layers=range(3, 48, 4), num_kv_heads=2, head_dim=256, dtype="bfloat16"), 16).only()
    linear = tuple(layer for layer in range(48) if layer % 4 != 3)
    # conv: (2 * 16 * 128 + 32 * 128) channels * (4 - 1) steps; ssm: 32 heads * 128 * 128
    conv = StateCacheRequest(name="conv", shape=(8192, 3), dtype="bfloat16", layers=linear)
    ssm = StateCacheRequest(name="ssm", shape=(32, 128, 128), dtype="bfloat16", layers=linear)
    (states,) = plan_from_states([conv, ssm], POLICY)

    # a token of one attention layer: 2 * 2 heads * 256 * 2 bytes, in 12 layers
    assert attention.block_nbytes() == 16 * 2048 * 12
    assert [spec.page_nbytes for spec in states.specs] == [49152, 1048576]
    assert states.slot_nbytes() == 36 * 1097728
