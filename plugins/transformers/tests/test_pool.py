"""Opening pools: sizes, devices, and backends of every page order."""

from __future__ import annotations

import pytest
import torch
from cachecore_torch_default import TorchBackend
from cachecore_transformers import (
    CachecoreCache,
    CachePool,
    KvShape,
    blocks_for,
    describe_layers,
    open_pool,
    plan_model,
)
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


def test_a_plan_of_fewer_layers_is_refused():
    small, large = tiny_config("llama"), tiny_config("llama")
    large.num_hidden_layers = small.num_hidden_layers + 2
    large.layer_types = None

    with pytest.raises(PlanError, match=r"layer 4 of the model has no row in group 'full', which was planned"):
        open_pool(large, plans=plan_model(small, dtype="float32"), num_blocks=4)


def test_a_model_with_more_layers_than_its_pool_is_refused(make_pool):
    config = tiny_config("llama")
    config.num_hidden_layers += 2
    config.layer_types = None
    model = type(tiny_model("llama"))(config).to(DEVICE)

    with (
        CachecoreCache(make_pool("llama")) as cache,
        pytest.raises(PlanError, match=r"layer 4 of the model has no cache: its pool was opened for a model of 4"),
    ):
        model(input_ids=torch.tensor([[5]], device=DEVICE), past_key_values=cache)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_sequences": -1}, PlanError, "num_sequences is -1; expected a positive integer"),
        ({"num_sequences": 2.5}, TypeError, "num_sequences must be an integer, not 2.5"),
        ({"num_sequences": "2"}, TypeError, "num_sequences must be an integer, not '2'"),
        ({"max_tokens": -8}, PlanError, "max_tokens is -8; expected a positive integer"),
        ({"max_tokens": "8"}, TypeError, "max_tokens must be an integer, not '8'"),
        ({"max_step_tokens": -1}, PlanError, "max_step_tokens is -1; expected a positive integer"),
        ({"max_step_tokens": "x"}, TypeError, "max_step_tokens must be an integer, not 'x'"),
        ({"kv_shapes": 3}, TypeError, "kv_shapes must be a mapping from layer to KvShape, not 3"),
        ({"kv_shapes": {0: 3}}, TypeError, "kv_shapes of layer 0 must be of type KvShape, not 3"),
        ({"kv_shapes": {99: KvShape(1, 2, 3)}}, PlanError, "kv_shapes names layer 99, but the model has layers 0 to 3"),
        ({"state_shapes": 3}, TypeError, "state_shapes must be a mapping from layer to StateShape, not 3"),
        ({"state_shapes": {0: (3,)}}, TypeError, "state_shapes of layer 0 must be of type StateShape, not 3"),
        ({"registry": 3}, TypeError, "registry must be a PluginRegistry, not 3"),
    ],
)
def test_a_pool_of_wrong_parts_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        open_pool(tiny_config("llama"), **{"max_tokens": 8, "dtype": "float32", **options})


@pytest.mark.parametrize("config", [None, "llama", {}])
def test_a_configuration_is_transformers(config):
    with pytest.raises(TypeError, match=r"config must be a transformers configuration, such as model\.config, not "):
        open_pool(config, max_tokens=8)


@pytest.mark.parametrize("plans", [None, 3, "plan"])
def test_blocks_are_counted_for_a_plan(plans):
    with pytest.raises(TypeError, match="plans must be a CachePlanSet, as plan_model"):
        blocks_for(plans, num_sequences=1, max_tokens=8)


def test_a_pool_is_made_of_an_engine_and_layers(make_pool):
    layers = describe_layers(tiny_config("llama"))

    with pytest.raises(TypeError, match="engine must be a CacheEngine, as open_engine"):
        CachePool(None, layers)
    with pytest.raises(TypeError, match="layers must be what describe_layers"):
        CachePool(make_pool("llama").engine, (3,))


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
