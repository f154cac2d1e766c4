"""Opening pools: sizes, devices, and backends of every page order."""

from __future__ import annotations

import pytest
import torch
from cachecore_torch_default import TorchBackend
from cachecore_transformers import CachecoreCache, CachePool, describe_layers, open_pool, plan_model
from twins import DEVICE, tiny_config, tiny_model, twins

from cachecore import (
    BackendInfo,
    EngineStateError,
    PlanError,
    PluginError,
    PluginRegistry,
    StandardLayoutPolicy,
    hookimpl,
)
from cachecore.registry import PluginRecord


class HeadFirstPolicy(StandardLayoutPolicy):
    """Pages of ``(heads, tokens, dim)``, as some accelerators want them."""

    name = "head-first"

    def kv_order(self, format: str) -> tuple[str, ...]:
        return ("head", "token", "other")


class HeadFirstPlugin:
    @hookimpl
    def cachecore_register_backends(self) -> list[BackendInfo]:
        def load() -> TorchBackend:
            return TorchBackend(HeadFirstPolicy())

        return [BackendInfo("head-first", ("*",), 500, lambda device: None, HeadFirstPolicy, load)]


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_head_first_pages(name, make_pool):
    registry = PluginRegistry()
    registry.register(HeadFirstPlugin(), PluginRecord("head-first", "a-test", "0"))
    pool = make_pool(
        name,
        num_sequences=4,
        registry=registry,
        num_host_blocks=dict.fromkeys(plan_model(tiny_config(name), dtype="float32").names, 20),
    )
    axes = {plan.specs[0].axes for plan in pool.engine.plans}
    assert axes == {("token", "head", "other") if name == "deepseek_v3" else ("head", "token", "other")}

    both = twins(name, pool)
    both.select([1, 0, 1])
    both.blocks.swap_out()
    both.blocks.swap_in()
    both.steps(6)


def test_a_backend_without_tensors_is_refused():
    with pytest.raises(PluginError, match="backend 'bytes' makes views of type ByteTensor; transformers needs torch"):
        open_pool(tiny_config("llama"), num_blocks=4, dtype="float32", device="null")


def test_a_pool_needs_a_size():
    with pytest.raises(PlanError, match="give num_blocks, or max_tokens"):
        open_pool(tiny_config("llama"), dtype="float32")


def test_planning_options_beside_a_plan_are_refused():
    plans = plan_model(tiny_config("llama"), dtype="float32")

    with pytest.raises(TypeError, match="plans are given, so block_size would change nothing"):
        open_pool(tiny_config("llama"), plans=plans, num_blocks=4, block_size=8)


def test_another_models_engine_is_refused(make_pool):
    pool = make_pool("llama")

    with pytest.raises(
        PlanError, match=r"the engine has groups \['full'\], but the model's layers need \['full', 'sliding'\]"
    ):
        CachePool(pool.engine, describe_layers(tiny_config("gemma3")))


def test_a_closed_pool_says_so():
    with open_pool(tiny_config("llama"), num_blocks=4, dtype="float32") as pool:
        cache = CachecoreCache(pool)

    with pytest.raises(EngineStateError, match="closed"):
        tiny_model("llama")(input_ids=torch.tensor([[5]], device=DEVICE), past_key_values=cache)
