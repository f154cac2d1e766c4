"""Published model shapes: every figure of ``data/models.json``, worked there by hand, comes out exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples import POLICY, Operator, request

from cachecore import (
    BlockCacheGeometry,
    CachePlanSet,
    GroupSpec,
    KvCacheConfig,
    StateCacheRequest,
    build_block_cache_plan,
    sizing,
)
from cachecore.agreement import solve_reports
from cachecore.kv import head_shard
from cachecore.report import rank_report

CASES = json.loads((Path(__file__).parent / "data" / "models.json").read_text(encoding="utf-8"))["cases"]
GIB_20 = 20 * 2**30


def case(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    found = next(one for one in CASES if one["name"] == name)
    return found["config"], found["runs"]


def runs(*names: str) -> list[Any]:
    return [
        pytest.param(config, run, id=f"{name}-{number}")
        for name in names
        for config, listed in [case(name)]
        for number, run in enumerate(listed)
    ]


def dense(config: dict[str, Any], run: dict[str, Any], layers: Any = None, tp_rank: int = 0) -> KvCacheConfig:
    return KvCacheConfig(
        layers=config["num_hidden_layers"] if layers is None else layers,
        dtype=config["torch_dtype"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        quant_policy=run.get("kv_dtype", "none"),
        tp_size=run.get("tp", 1),
        tp_rank=tp_rank,
    )


def latent(config: dict[str, Any], run: dict[str, Any], tp_rank: int = 0) -> KvCacheConfig:
    return KvCacheConfig(
        layers=config["num_hidden_layers"],
        dtype=config["torch_dtype"],
        latent_dim=config["kv_lora_rank"],
        rope_dim=config["qk_rope_head_dim"],
        sparse_mla="index_topk" in config,
        quant_policy=run.get("kv_dtype", "none"),
        tp_size=run.get("tp", 1),
        tp_rank=tp_rank,
    )


def planned(kv: Any, run: dict[str, Any], modules: Any = (), **more: Any) -> CachePlanSet:
    geometry = BlockCacheGeometry(run.get("block_size", 16))
    return build_block_cache_plan(modules, kv=kv, geometry=geometry, device="null", policy=POLICY, **more)


def indexers(config: dict[str, Any], run: dict[str, Any]) -> list[Operator]:
    width = config["index_head_dim"] + 4  # fp8 keys, one fp32 scale a token
    return [
        Operator(
            request("dsa_indexer_k", (run["block_size"], 1, width), layer=layer, per_row_contiguous=True, format="dsa")
        )
        for layer in range(config["num_hidden_layers"])
    ]


@pytest.mark.parametrize(("config", "run"), runs("llama-3.1-8b", "llama-3.1-70b"))
def test_llama(config, run):
    for tp_rank in range(run.get("tp", 1)):
        sets = [planned(dense(config, run, tp_rank=tp_rank), run)]
        if "draft" in run:
            sets.append(planned(dense(config, run, layers=run["draft"]["num_hidden_layers"]), run))

        answer = sizing.solve(sets, memory_nbytes=GIB_20)

        plan = sets[0]["full"]
        assert sum(one["full"].block_nbytes() for one in sets) == run["block_nbytes"]
        assert sum(spec.page_nbytes for spec in plan.specs) == run.get("page_nbytes", 65536)
        assert answer.counts == {"full": run["fits_20GiB"]}
        assert answer.padding_nbytes == 0
        if "request_tokens" in run:
            assert sizing.request_demand(sets, run["request_tokens"]) == {"full": run["request_blocks"]}


@pytest.mark.parametrize(
    ("config", "run"), runs("llama-3.1-8b, two pipeline stages of 17 and 15 layers, 10 GiB a rank")
)
def test_pipeline_stages_agree_and_plan_again_at_the_agreed_count(config, run):
    first, _ = run["stages"]
    stages = [planned(dense(config, run, layers), run) for layers in (range(first), range(first, 32))]
    assert [stage["full"].block_nbytes() for stage in stages] == run["rank_block_nbytes"]

    reports = [
        rank_report(stage, memory_nbytes=memory)
        for stage, memory in zip(stages, run["rank_memory_nbytes"], strict=True)
    ]
    agreement = solve_reports(reports, 2)

    assert agreement.counts == {"full": run["num_blocks"]}
    assert [sizing.reserved_nbytes(stage, agreement.counts_of(stage)) for stage in stages] == run["rank_nbytes"]


@pytest.mark.parametrize(("config", "run"), runs("gpt-oss-120b"))
def test_windows_bound_what_a_request_holds(config, run):
    shape = {name: config[name] for name in ("head_dim",)} | {"num_kv_heads": config["num_key_value_heads"]}
    plans = planned(
        [
            KvCacheConfig(layers=range(1, 36, 2), dtype="bfloat16", **shape),
            KvCacheConfig(layers=range(0, 36, 2), dtype="bfloat16", group="sliding", **shape),
        ],
        run,
        groups=[GroupSpec("sliding", BlockCacheGeometry(run["block_size"]), config["sliding_window"])],
    )

    demand = sizing.request_demand(plans, run["request_tokens"], run["in_flight_tokens"])

    assert sum(spec.page_nbytes for spec in plans["full"].specs) == run["page_nbytes"]
    assert plans["full"].block_nbytes() == run["full_block_nbytes"] == run["page_nbytes"] * run["full_layers"]
    assert plans["sliding"].block_nbytes() == run["sliding_block_nbytes"]
    assert demand == {"full": run["request_full_blocks"], "sliding": run["request_sliding_blocks"]}
    assert sizing.reserved_nbytes(plans, demand) == run["request_nbytes"]


@pytest.mark.parametrize(("config", "run"), runs("deepseek-v3"))
def test_a_latent_is_whole_on_every_rank(config, run):
    for tp_rank in range(run.get("tp", 1)):
        plan = planned(latent(config, run, tp_rank), run)["full"]

        assert plan.block_nbytes() == run["block_nbytes"]
        assert sum(spec.page_nbytes for spec in plan.specs) == 73728
        assert sizing.fit(CachePlanSet((plan,), "null", "bytes"), memory_nbytes=GIB_20) == {"full": 4774}


@pytest.mark.parametrize(("config", "run"), runs("deepseek-v3.2"))
def test_a_latent_and_its_index_stand_side_by_side(config, run):
    plans = planned(latent(config, run), run, indexers(config, run))

    plan = plans["full"]
    pages = {spec.name: spec.page_nbytes for spec in plan.specs}
    assert pages == {"k_cache": run["page_nbytes"]["mla"], "v_cache": 0, "dsa_indexer_k": run["page_nbytes"]["index"]}
    assert plan.block_nbytes() == run["block_nbytes"]
    assert sizing.fit(plans, memory_nbytes=GIB_20) == {"full": run["fits_20GiB"]}
    if "num_tensors" in run:
        assert sum(spec.num_rows for spec in plan.specs if spec.page_nbytes) == run["num_tensors"]
        assert pages["k_cache"] == run["block_size"] * run["mla_token_nbytes"]
        assert pages["dsa_indexer_k"] == run["block_size"] * run["index_token_nbytes"]


QWEN, (QWEN_RUN,) = case("qwen3-next-80b-a3b")


def qwen3_next(tp_size: int = 1, tp_rank: int = 0) -> CachePlanSet:
    interval = QWEN["full_attention_interval"]
    layers = range(QWEN["num_hidden_layers"])
    attention = tuple(layer for layer in layers if layer % interval == interval - 1)
    linear = tuple(layer for layer in layers if layer % interval != interval - 1)
    heads = head_shard(QWEN["linear_num_value_heads"], tp_size, tp_rank)
    key_dim = QWEN["linear_num_key_heads"] * QWEN["linear_key_head_dim"]
    value_dim = QWEN["linear_num_value_heads"] * QWEN["linear_value_head_dim"]
    channels = (2 * key_dim + value_dim) // tp_size
    dtype = QWEN_RUN["state_dtype"]
    return planned(
        KvCacheConfig(
            layers=attention,
            dtype=dtype,
            num_kv_heads=QWEN["num_key_value_heads"],
            head_dim=QWEN["head_dim"],
            tp_size=tp_size,
            tp_rank=tp_rank,
        ),
        QWEN_RUN,
        states=[
            StateCacheRequest(
                name="conv", shape=(channels, QWEN["linear_conv_kernel_dim"] - 1), dtype=dtype, layers=linear
            ),
            StateCacheRequest(
                name="ssm",
                shape=(heads.count, QWEN["linear_key_head_dim"], QWEN["linear_value_head_dim"]),
                dtype=dtype,
                axes=("head", "other", "other"),
                shard=heads,
                layers=linear,
            ),
        ],
    )


def test_qwen3_next_states_take_their_bytes_and_pad_nothing():
    plans = qwen3_next()

    conv, ssm = plans["state"].specs
    assert (conv.num_rows, plans["full"].specs[0].num_rows) == (QWEN_RUN["state_layers"], QWEN_RUN["full_layers"])
    assert (conv.page_nbytes, ssm.page_nbytes) == (QWEN_RUN["conv_nbytes"], QWEN_RUN["ssm_nbytes"])
    assert plans["state"].slot_nbytes() == QWEN_RUN["slot_layer_nbytes"] * QWEN_RUN["state_layers"]
    # blocks of 16 tokens, 12 layers: no page of 544 tokens is forced by the state
    assert plans["full"].block_nbytes() == 16 * QWEN_RUN["full_token_layer_nbytes"] * 12
    assert sizing.solve(plans, memory_nbytes=GIB_20, context_length=32768).padding_nbytes == 0


def test_states_are_sized_with_the_rank_s_share():
    """A planner that took one number for all ranks would plan four times these bytes on each of four."""
    shares = [qwen3_next(4, tp_rank)["state"].slot_nbytes() for tp_rank in range(4)]

    assert shares == [QWEN_RUN["slot_layer_nbytes"] * QWEN_RUN["state_layers"] // 4] * 4


def test_a_draft_layer_costs_a_hybrid_model_that_layer_s_bytes_and_nothing_else():
    target = qwen3_next()
    draft = planned(dense({**QWEN, "num_hidden_layers": 1}, QWEN_RUN), QWEN_RUN)

    alone, both = (
        sizing.reserved_nbytes(sets, {"full": 1000, "state": 8})
        for sets in (target, {"target": target, "draft": draft})
    )

    # 1000 blocks of 16 tokens, K and V of 2 heads and 256 dims in bfloat16
    assert both - alone == 1000 * 16 * 2 * 2 * 256 * 2
