"""Reading transformers configurations."""

from __future__ import annotations

import pytest
import torch
import transformers
from cachecore_transformers import (
    KvShape,
    StateShape,
    describe_layers,
    measure_kv_shapes,
    measure_state_shapes,
)
from tiny_models import MEASURED_MODELS, STATE_MODELS
from transformers import AutoModelForCausalLM
from twins import DEVICE, tiny_config, tiny_model

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


def test_an_unsupported_kind_is_named():
    config = transformers.LlamaConfig(
        num_hidden_layers=2, sliding_window=8, layer_types=["full_attention", "reference_sliding_attention"]
    )

    with pytest.raises(PlanError, match="layer 1 of LlamaConfig is a 'reference_sliding_attention' layer") as error:
        describe_layers(config)

    assert (error.value.layer, error.value.kind) == (1, "reference_sliding_attention")
    assert "full_attention, sliding_attention, chunked_attention, indexed_attention" in str(error.value)


def test_states_of_an_unknown_model_have_to_be_measured():
    config = transformers.LlamaConfig(num_hidden_layers=1, layer_types=["linear_attention"])

    with pytest.raises(PlanError, match=r"layer 0: .* LlamaConfig are is not known; pass state_shapes=measure_state"):
        describe_layers(config)
    (layer,) = describe_layers(config, state_shapes={0: (StateShape("conv_state", (8, 3)),)})
    assert (layer.group, layer.shape, layer.states) == (None, None, (StateShape("conv_state", (8, 3)),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in STATE_MODELS if name not in ("deepseek_v4", *MEASURED_MODELS)])
def test_measured_states_equal_those_of_the_configuration(name, dtype):
    model = AutoModelForCausalLM.from_config(tiny_config(name), dtype=dtype).to(DEVICE).eval()
    own = str(dtype).removeprefix("torch.")
    described = {
        layer.layer: tuple(StateShape(state.name, state.shape, state.dtype or own) for state in layer.states)
        for layer in describe_layers(tiny_config(name))
        if layer.states
    }

    assert measure_state_shapes(model) == described


def test_a_configuration_that_does_not_tell_shapes_says_what_to_do():
    with pytest.raises(PlanError, match=r"pass kv_shapes=measure_kv_shapes\(model\)"):
        describe_layers(transformers.PreTrainedConfig(layer_types=["full_attention"], num_hidden_layers=1))


@pytest.mark.parametrize(
    "name", ["llama", "gemma4", "deepseek_v3", "jamba", "falcon_h1", "deepseek_v32", "deepseek_v4"]
)
def test_measured_shapes_equal_those_of_the_configuration(name):
    described = {layer.layer: layer.shape for layer in describe_layers(tiny_config(name)) if layer.shape}

    assert measure_kv_shapes(tiny_model(name)) == described


def test_given_shapes_overrule_the_configuration():
    layers = describe_layers(tiny_config("llama"), {1: KvShape(4, 8, 6)})

    assert [layer.shape for layer in layers[:2]] == [KvShape(2, 8, 8), KvShape(4, 8, 6)]
