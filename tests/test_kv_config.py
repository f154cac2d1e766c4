from __future__ import annotations

import pytest
from samples import POLICY, Index

from cachecore import (
    BlockCacheGeometry,
    KvCacheConfig,
    PlanError,
    kv_specs,
)

GEOMETRY = BlockCacheGeometry(64, 16)  # pages of 16 tokens


def config(**more):
    return KvCacheConfig(**{"layers": 2, "dtype": "float16", "num_kv_heads": 8, "head_dim": 64, **more})


def mla(**more):
    return KvCacheConfig(**{"layers": 2, "dtype": "bfloat16", "latent_dim": 512, "rope_dim": 64, **more})


@pytest.mark.parametrize(
    ("code", "name"), [(0, "none"), (4, "int4"), (8, "int8"), (16, "fp8"), (17, "fp8_e5m2"), (42, "turbo_quant")]
)
def test_numeric_codes_are_read(code, name):
    assert config(quant_policy=code).quant_policy == name


def test_e4m3_is_the_default_fp8():
    assert config(quant_policy="fp8_e4m3") == config(quant_policy="fp8")


@pytest.mark.parametrize("policy", [5, "int2", "", -1])
def test_an_unknown_policy_is_refused_with_the_known(policy):
    with pytest.raises(
        PlanError, match=r"is unknown; expected one of none, int8.* or one of 0, 4, 8, 16, 17, 42"
    ) as caught:
        config(quant_policy=policy)

    assert caught.value.quant_policy == policy


@pytest.mark.parametrize("policy", [None, 8.0, ["int8"]])
def test_a_policy_of_a_wrong_type_is_a_type_error(policy):
    with pytest.raises(TypeError, match=r"quant_policy must be a name or a number"):
        config(quant_policy=policy)


def test_layers_are_a_count_or_global_ids():
    assert config(layers=3).layers == (0, 1, 2)
    assert kv_specs(config(layers=[16, 31]), GEOMETRY, POLICY)[1].row_ids == (16, 31)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"layers": 0}, "layers is 0; expected a positive integer"),
        ({"layers": []}, "no layers given"),
        ({"layers": [3, 3]}, "layer 3 is listed twice"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0; expected a positive"),
        ({"tp_size": 0}, "tp_size is 0; expected a positive"),
        ({"tp_size": 2, "tp_rank": 2}, "tp_rank is 2; expected 0 to 1"),
        ({"tp_rank": -1}, "tp_rank is -1; expected 0 to 0"),
        ({"head_dim": None}, "head_dim is missing; give head_dim, or latent_dim and rope_dim for MLA"),
        ({"head_dim": 0}, "head_dim is 0; expected a positive"),
        ({"v_head_dim": -1}, "v_head_dim is -1; expected zero or more"),
        ({"latent_dim": 0}, "latent_dim is 0; expected a positive"),
        ({"latent_dim": 512, "rope_dim": -64}, "rope_dim is -64; expected zero or more"),
        ({"dtype": "fp8"}, "dtype 'fp8' names no storage dtype"),
    ],
)
def test_a_config_that_cannot_be_is_refused(more, message):
    with pytest.raises(PlanError, match=message):
        config(**more)


@pytest.mark.parametrize("name", ["num_kv_heads", "head_dim", "v_head_dim", "tp_size", "tp_rank"])
def test_a_config_of_a_wrong_type_is_a_type_error(name):
    with pytest.raises(TypeError, match=f"{name} must be an integer"):
        config(**{name: 1.0})


def test_a_config_keeps_plain_integers():
    made = config(num_kv_heads=Index(8), head_dim=Index(64), v_head_dim=Index(32), tp_size=Index(2), tp_rank=Index(1))

    assert made == config(num_kv_heads=8, head_dim=64, v_head_dim=32, tp_size=2, tp_rank=1)


@pytest.mark.parametrize("layers", [None, 2.0, "two"])
def test_layers_are_a_count_or_a_sequence(layers):
    with pytest.raises(TypeError, match=rf"layers must be a sequence, not {layers!r}"):
        KvCacheConfig(layers=layers, dtype="float16", head_dim=8)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"layers": 10**12}, PlanError, "layers is 1000000000000; expected at most"),
        ({"group": None}, PlanError, "group is None"),
        ({"group": ""}, PlanError, "group is ''"),
        ({"sparse_mla": 1}, TypeError, "sparse_mla must be a bool, not 1"),
        ({"quant_policy": False}, TypeError, "quant_policy must be a name or a number, not False"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_listed(changed, error, message):
    with pytest.raises(error, match=message):
        KvCacheConfig(**{"layers": 1, "dtype": "int8", "head_dim": 8, **changed})
