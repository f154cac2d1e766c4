"""Published model shapes, from ``data/models.json``: what is planned of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples import POLICY, Operator, request

from cachecore import (
    BlockCacheGeometry,
    CachePlanSet,
    KvCacheConfig,
    StateCacheRequest,
    build_block_cache_plan,
)
from cachecore.kv import head_shard

DATA = json.loads((Path(__file__).parent / "data" / "models.json").read_text(encoding="utf-8"))
CASES = DATA["cases"]
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


QWEN, (QWEN_RUN,) = case("qwen3-next-80b-a3b")


def qwen3_next(tp_size: int = 1, tp_rank: int = 0) -> CachePlanSet:
    """One rank's share: value heads of the recurrent state; of the convolution, channels in groups by key head."""
    interval = QWEN["full_attention_interval"]
    layers = range(QWEN["num_hidden_layers"])
    attention = tuple(layer for layer in layers if layer % interval == interval - 1)
    linear = tuple(layer for layer in layers if layer % interval != interval - 1)
    value_heads = head_shard(QWEN["linear_num_value_heads"], tp_size, tp_rank)
    key_heads = head_shard(QWEN["linear_num_key_heads"], tp_size, tp_rank)
    values_a_key = QWEN["linear_num_value_heads"] // QWEN["linear_num_key_heads"]
    channels = 2 * QWEN["linear_key_head_dim"] + values_a_key * QWEN["linear_value_head_dim"]  # query, key, values
    shared = {"dtype": QWEN_RUN["state_dtype"], "axes": ("head", "other", "other"), "layers": linear}
    return planned(
        KvCacheConfig(
            layers=attention,
            dtype=QWEN["torch_dtype"],
            num_kv_heads=QWEN["num_key_value_heads"],
            head_dim=QWEN["head_dim"],
            tp_size=tp_size,
            tp_rank=tp_rank,
        ),
        QWEN_RUN,
        states=[
            StateCacheRequest(
                name="conv",
                shape=(key_heads.count, channels, QWEN["linear_conv_kernel_dim"] - 1),
                shard=key_heads,
                **shared,
            ),
            StateCacheRequest(
                name="ssm",
                shape=(value_heads.count, QWEN["linear_key_head_dim"], QWEN["linear_value_head_dim"]),
                shard=value_heads,
                **shared,
            ),
        ],
    )
