"""Reading transformers configurations."""

from __future__ import annotations

import pytest
import transformers
from cachecore_transformers import KvShape, describe_layers, measure_kv_shapes
from twins import tiny_config, tiny_model

from cachecore import PlanError


def test_a_mixed_model_has_a_group_for_each_kind_of_attention():
    layers = describe_layers(tiny_config("gemma3"))

    assert [layer.group for layer in layers] == ["sliding", "full", "sliding", "full"]
    assert [layer.window for layer in layers] == [12, None, 12, None]
    assert {layer.shape for layer in layers} == {KvShape(2, 16, 16)}


def test_mla_caches_a_latent_and_its_rotary_part():
    assert {layer.shape for layer in describe_layers(tiny_config("deepseek_v3"))} == {KvShape(1, 24, 8, latent=True)}


def test_layers_that_reuse_keys_and_values_keep_none():
    layers = describe_layers(tiny_config("gemma4"))

    assert [layer.group for layer in layers] == ["sliding", "full", "sliding", "full", None, None]
    assert layers[0].shape == KvShape(2, 16, 16)
    assert layers[1].shape == KvShape(2, 32, 32)
    assert layers[4].shape is None


def test_two_windows_are_two_groups():
    config = tiny_config("gemma3")
    config.per_layer_config = {0: {"sliding_window": 8}}

    assert [layer.group for layer in describe_layers(config)] == ["sliding_8", "full", "sliding_12", "full"]


@pytest.mark.parametrize(
    ("kind", "values", "layer", "name"),
    [
        ("Qwen3NextConfig", {"num_hidden_layers": 4}, 0, "linear_attention"),
        ("DeepseekV32Config", {"num_hidden_layers": 2, "index_topk": 8}, 0, "indexed_attention"),
        (
            "JambaConfig",
            {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 0},
            1,
            "linear_attention",
        ),
    ],
)
def test_an_unsupported_kind_is_named(kind, values, layer, name):
    config = getattr(transformers, kind)(**values)

    with pytest.raises(PlanError, match=f"layer {layer} of {kind} is a '{name}' layer") as error:
        describe_layers(config)

    assert (error.value.layer, error.value.kind) == (layer, name)
    assert "full_attention, sliding_attention, chunked_attention" in str(error.value)


def test_a_configuration_that_does_not_tell_shapes_says_what_to_do():
    with pytest.raises(PlanError, match=r"pass kv_shapes=measure_kv_shapes\(model\)"):
        describe_layers(transformers.PreTrainedConfig(layer_types=["full_attention"], num_hidden_layers=1))


@pytest.mark.parametrize("name", ["llama", "gemma4", "deepseek_v3"])
def test_measured_shapes_equal_those_of_the_configuration(name):
    described = {layer.layer: layer.shape for layer in describe_layers(tiny_config(name)) if layer.shape}

    assert measure_kv_shapes(tiny_model(name)) == described


def test_given_shapes_overrule_the_configuration():
    layers = describe_layers(tiny_config("llama"), {1: KvShape(4, 8, 6)})

    assert [layer.shape for layer in layers[:2]] == [KvShape(2, 8, 8), KvShape(4, 8, 6)]
