"""Published model shapes: every figure of ``data/models.json``, worked there by hand, comes out exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from published import GIB_20, QWEN, QWEN_RUN, dense, indexers, latent, planned, qwen3_next, runs

from cachecore import (
    AgreementError,
    BlockCacheGeometry,
    CachePlanSet,
    GroupSpec,
    KvCacheConfig,
    sizing,
)
from cachecore.agreement import solve_reports
from cachecore.report import rank_report


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
            assert run["request_tokens"] == config["max_position_embeddings"]
            assert sizing.request_demand(sets, run["request_tokens"]) == {"full": run["request_blocks"]}


@pytest.mark.parametrize(
    ("config", "run"), runs("llama-3.1-8b, two pipeline stages of 17 and 15 layers, 10 GiB a rank")
)
def test_pipeline_stages_agree_and_plan_again_at_the_agreed_count(config, run):
    first, second = run["stages"]
    assert first + second == config["num_hidden_layers"]
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
    sliding, full = (range(first, config["num_hidden_layers"], 2) for first in (0, 1))
    assert (len(sliding), len(full)) == (run["sliding_layers"], run["full_layers"])
    plans = planned(
        [
            KvCacheConfig(layers=full, dtype=config["torch_dtype"], **shape),
            KvCacheConfig(layers=sliding, dtype=config["torch_dtype"], group="sliding", **shape),
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
        plans = planned(latent(config, run, tp_rank), run)

        plan = plans["full"]
        assert plan.block_nbytes() == run["block_nbytes"]
        assert sum(spec.page_nbytes for spec in plan.specs) * config["num_hidden_layers"] == run["block_nbytes"]
        if "fits_20GiB" in run:
            assert sum(spec.page_nbytes for spec in plan.specs) == run["page_nbytes"]
            assert sizing.fit(plans, memory_nbytes=GIB_20) == {"full": run["fits_20GiB"]}


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


def test_qwen3_next_states_take_their_bytes_and_pad_nothing():
    plans = qwen3_next()

    conv, ssm = plans["state"].specs
    assert (conv.num_rows, plans["full"].specs[0].num_rows) == (QWEN_RUN["state_layers"], QWEN_RUN["full_layers"])
    assert (conv.page_nbytes, ssm.page_nbytes) == (QWEN_RUN["conv_nbytes"], QWEN_RUN["ssm_nbytes"])
    assert plans["state"].slot_nbytes() == QWEN_RUN["slot_layer_nbytes"] * QWEN_RUN["state_layers"]
    # blocks of 16 tokens, 12 layers: no page of 544 tokens is forced by the state
    assert plans["full"].block_nbytes() == 16 * QWEN_RUN["full_token_layer_nbytes"] * QWEN_RUN["full_layers"]
    assert sizing.solve(plans, memory_nbytes=GIB_20, context_length=32768).padding_nbytes == 0


@pytest.mark.parametrize("tp_size", [2, 4, 8, 16])
def test_both_states_are_sized_with_the_rank_s_share(tp_size):
    """A planner that took one number for all ranks would plan ``tp_size`` times these bytes on each of them."""
    for tp_rank in range(tp_size):
        state = qwen3_next(tp_size, tp_rank)["state"]

        conv, ssm = state.specs
        assert conv.page_nbytes * tp_size == QWEN_RUN["conv_nbytes"]
        assert ssm.page_nbytes * tp_size == QWEN_RUN["ssm_nbytes"]
        assert state.slot_nbytes() * tp_size == QWEN_RUN["slot_layer_nbytes"] * QWEN_RUN["state_layers"]


def test_ranks_that_share_states_agree_and_notice_a_share_that_nobody_holds():
    ranks = [qwen3_next(4, tp_rank) for tp_rank in range(4)]

    def solved(plans):
        return solve_reports([rank_report(one, memory_nbytes=GIB_20, context_length=32768) for one in plans], 4)

    # a sequence: 2,048 blocks of 16 tokens, one K/V head of two on each rank, and a quarter of a slot
    nbytes = 2048 * 16 * 12 * 1024 + 36 * 1097728 // 4
    agreement = solved(ranks)
    assert agreement.num_requests == GIB_20 // nbytes
    assert agreement.padding_nbytes == (0, 0, 0, 0)
    with pytest.raises(AgreementError, match="no rank holds 4 of the 16 heads of layer 0 of cache 'conv'"):
        solved([ranks[0], ranks[1], ranks[2], planned_twice()])


def planned_twice() -> CachePlanSet:
    """The last rank with the convolution of the third: its channels were not split by rank."""
    third, fourth = qwen3_next(4, 2), qwen3_next(4, 3)
    conv, ssm = third["state"].specs[0], fourth["state"].specs[1]
    state = replace(fourth["state"], specs=(conv, ssm))
    return CachePlanSet((fourth["full"], state), fourth.device, fourth.backend)


def test_a_draft_layer_costs_a_hybrid_model_that_layer_s_bytes_and_nothing_else():
    target = qwen3_next()
    draft = planned(dense({**QWEN, "num_hidden_layers": 1}, QWEN_RUN), QWEN_RUN)

    alone, both = (
        sizing.reserved_nbytes(sets, {"full": 1000, "state": 8})
        for sets in (target, {"target": target, "draft": draft})
    )

    # 1000 blocks of 16 tokens, K and V of 2 heads and 256 dims in bfloat16
    assert both - alone == 1000 * 16 * 2 * 2 * 256 * 2
