from __future__ import annotations

import pytest
from samples import POLICY

from cachecore import (
    BlockCacheGeometry,
    HeadShard,
    KvCacheConfig,
    KvStorage,
    PlanError,
    PluginError,
    StandardLayoutPolicy,
    kv_specs,
)
from cachecore.kv import QUANT_POLICIES, head_shard

GEOMETRY = BlockCacheGeometry(64, 16)  # pages of 16 tokens


def config(**more):
    return KvCacheConfig(**{"layers": 2, "dtype": "float16", "num_kv_heads": 8, "head_dim": 64, **more})


def mla(**more):
    return KvCacheConfig(**{"layers": 2, "dtype": "bfloat16", "latent_dim": 512, "rope_dim": 64, **more})


def described(made):
    """Name to shape, dtype and format."""
    return {spec.name: (spec.shape, spec.dtype, spec.format) for spec in made}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("none", {"k_cache": ((16, 8, 64), "float16", "plain"), "v_cache": ((16, 8, 64), "float16", "plain")}),
        (
            "int8",
            {
                "k_cache": ((16, 8, 64), "uint8", "int8_asym"),
                "v_cache": ((16, 8, 64), "uint8", "int8_asym"),
                "quant_0": ((16, 8, 2), "float16", "int8_asym_scales"),
                "quant_1": ((16, 8, 2), "float16", "int8_asym_scales"),
            },
        ),
        (
            "int4",  # two elements a byte
            {
                "k_cache": ((16, 8, 32), "uint8", "int4_asym"),
                "v_cache": ((16, 8, 32), "uint8", "int4_asym"),
                "quant_0": ((16, 8, 2), "float16", "int4_asym_scales"),
                "quant_1": ((16, 8, 2), "float16", "int4_asym_scales"),
            },
        ),
        (
            "turbo_quant",  # K two, V four elements a byte
            {
                "k_cache": ((16, 8, 32), "uint8", "turbo_k"),
                "v_cache": ((16, 8, 16), "uint8", "turbo_v"),
                "quant_0": ((16, 8, 2), "float16", "turbo_scales"),
                "quant_1": ((16, 8, 1), "float16", "turbo_scales"),
            },
        ),
        (
            "fp8",
            {"k_cache": ((16, 8, 64), "float8_e4m3fn", "fp8"), "v_cache": ((16, 8, 64), "float8_e4m3fn", "fp8")},
        ),
        (
            "fp8_e5m2",
            {
                "k_cache": ((16, 8, 64), "float8_e5m2", "fp8_e5m2"),
                "v_cache": ((16, 8, 64), "float8_e5m2", "fp8_e5m2"),
            },
        ),
    ],
)
def test_every_quantisation_has_its_page(policy, expected):
    made = kv_specs(config(quant_policy=policy), GEOMETRY, POLICY)

    assert described(made) == expected
    assert list(described(made)) == list(expected)  # K, V, then the auxiliary values


@pytest.mark.parametrize(
    ("policy", "nbytes"),
    [
        ("none", 2 * 16 * 8 * 64 * 2),  # 32,768: K and V, two bytes an element
        ("int8", 2 * 16 * 8 * 64 + 2 * 16 * 8 * 2 * 2),  # 16,384 + 1,024 of scale and zero
        ("int4", 2 * 16 * 8 * 32 + 2 * 16 * 8 * 2 * 2),  # 8,192 + 1,024
        ("turbo_quant", 16 * 8 * (32 + 16) + 16 * 8 * (2 + 1) * 2),  # 6,144 + 768
        ("fp8", 2 * 16 * 8 * 64),  # 16,384
        ("fp8_e5m2", 2 * 16 * 8 * 64),
    ],
)
def test_every_quantisation_counts_its_bytes(policy, nbytes):
    made = kv_specs(config(quant_policy=policy), GEOMETRY, POLICY)

    assert sum(spec.page_nbytes for spec in made) == nbytes


def test_an_mla_latent_is_one_head_on_every_rank_and_has_no_v():
    k, v = kv_specs(mla(tp_size=8, tp_rank=5), GEOMETRY, POLICY)

    assert (k.shape, k.dtype, k.format, k.shard) == ((16, 1, 576), "bfloat16", "plain", HeadShard())
    assert (v.shape, v.page_nbytes) == ((16, 1, 0), 0)


@pytest.mark.parametrize("more", [{"quant_policy": "fp8_ds_mla"}, {"quant_policy": "fp8", "sparse_mla": True}])
def test_fp8_ds_mla_is_656_bytes_a_token(more):
    k, v = kv_specs(mla(**more), GEOMETRY, POLICY)

    # 512 fp8 latent bytes + 512 / 128 = 4 float32 scales (16 bytes) + 64 16-bit rope values (128 bytes)
    assert (k.shape, k.dtype, k.format) == ((16, 1, 656), "float8_e4m3fn", "fp8_ds_mla")
    assert k.page_nbytes == 16 * 656
    assert v.page_nbytes == 0


@pytest.mark.parametrize(
    ("policy", "dtype", "fmt"), [("fp8", "float8_e4m3fn", "fp8"), ("fp8_e5m2", "float8_e5m2", "fp8_e5m2")]
)
def test_a_dense_latent_in_generic_fp8_keeps_its_width(policy, dtype, fmt):
    # W27: the dtype resolved to the generic policy, the shape to 656.
    k, v = kv_specs(mla(quant_policy=policy), GEOMETRY, POLICY)

    assert (k.shape, k.dtype, k.format) == ((16, 1, 576), dtype, fmt)  # 512 + 64 elements of a byte each
    assert (v.shape, v.dtype, v.page_nbytes) == ((16, 1, 0), dtype, 0)


@pytest.mark.parametrize("policy", ["int8", "int4", "turbo_quant"])
def test_a_dense_latent_takes_no_scales_beside_it(policy):
    with pytest.raises(
        PlanError, match=f"quant_policy '{policy}' cannot hold an MLA latent; expected one of none, fp8, fp8_e5m2, fp8_"
    ):
        mla(quant_policy=policy)


@pytest.mark.parametrize("policy", ["fp8_e5m2", "int8", "int4", "turbo_quant"])
def test_a_sparse_latent_takes_fp8_only(policy):
    with pytest.raises(
        PlanError, match=f"quant_policy '{policy}' cannot hold an MLA latent; expected one of none, fp8$"
    ) as e:
        mla(quant_policy=policy, sparse_mla=True)

    assert e.value.quant_policy == policy


def test_fp8_ds_mla_needs_a_latent():
    with pytest.raises(PlanError, match=r"'fp8_ds_mla' is a layout of MLA latents; give latent_dim and rope_dim"):
        config(quant_policy="fp8_ds_mla")


def test_sparse_mla_needs_a_latent():
    with pytest.raises(PlanError, match=r"sparse_mla needs an MLA cache; give latent_dim and rope_dim"):
        config(sparse_mla=True)


def test_fp8_ds_mla_needs_whole_tiles():
    with pytest.raises(PlanError, match=r"keeps a scale for 128 elements; latent_dim 500 is no multiple"):
        kv_specs(mla(latent_dim=500, quant_policy="fp8_ds_mla"), GEOMETRY, POLICY)


def test_heads_first_where_the_device_wants_it():
    class Camb(StandardLayoutPolicy):
        def kv_order(self, format):
            return ("head", "token", "other")

    k, *_, aux = kv_specs(config(quant_policy="int8"), GEOMETRY, Camb())
    latent, _ = kv_specs(mla(), GEOMETRY, Camb())

    assert (k.shape, k.axes) == ((8, 16, 64), ("head", "token", "other"))
    assert aux.shape == (8, 16, 2)
    assert latent.shape == (16, 1, 576)  # one head is in order everywhere


def test_an_order_without_all_axes_is_refused():
    policy = type("Vendor", (StandardLayoutPolicy,), {"kv_order": lambda self, format: ("token", "other", "other")})()

    with pytest.raises(
        PluginError, match=r"policy 'standard': kv_order\(\) returned .*; expected token, head and other"
    ):
        kv_specs(config(), GEOMETRY, policy)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("storage", None, r"storage\(\) returned None; expected KvStorage or the reason why not"),
        ("storage", b"float16", r"storage\(\) returned b'float16'; expected KvStorage"),
        ("storage", SystemExit(2), r"storage\(\) raised SystemExit: 2"),
        ("storage", KeyError("plain"), r"storage\(\) raised KeyError: 'plain'"),
        ("kv_order", None, r"kv_order\(\) returned None; expected token, head and other once each"),
        ("kv_order", (1, 2, 3), r"kv_order\(\) returned \(1, 2, 3\); expected token"),
        ("kv_order", SystemExit(2), r"kv_order\(\) raised SystemExit: 2"),
    ],
)
def test_a_policy_that_breaks_its_contract_is_named(method, answer, message):
    def answering(self, format):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    policy = type("Vendor", (StandardLayoutPolicy,), {"name": "vendor", method: answering})()

    with pytest.raises(PluginError, match=f"policy 'vendor': {message}"):
        kv_specs(config(), GEOMETRY, policy)


@pytest.mark.parametrize("position", range(3))
@pytest.mark.parametrize("wrong", [None, 3, "standard", StandardLayoutPolicy])
def test_specs_of_anything_else_are_refused_by_type(position, wrong):
    arguments = [config(), GEOMETRY, POLICY]
    arguments[position] = wrong

    with pytest.raises(TypeError, match=r"kv_specs needs a (KvCacheConfig|BlockCacheGeometry|LayoutPolicy), not "):
        kv_specs(*arguments)


@pytest.mark.parametrize(("tp_size", "tp_rank"), [(4, 4), (4, -1), (1, 3), (16, 16)])
def test_a_rank_that_there_is_not_is_refused(tp_size, tp_rank):
    with pytest.raises(PlanError, match=rf"tp_rank is {tp_rank}; expected 0 to {tp_size - 1}"):
        head_shard(8, tp_size, tp_rank)


def test_a_format_the_device_cannot_hold_is_refused_with_its_reason():
    # W28: a device check was lost, and every device took uint8.
    policy = type("Vendor", (StandardLayoutPolicy,), {"storage": lambda self, format: "this device has no fp8"})()

    with pytest.raises(
        PlanError, match=r"quant_policy 'fp8' cannot be planned by 'standard': this device has no fp8"
    ) as e:
        kv_specs(config(quant_policy="fp8"), GEOMETRY, policy)
    assert e.value.format == "fp8"


def test_the_storage_is_the_devices():
    # Ascend keeps int8 K/V in int8, not uint8.
    policy = type("Ascend", (StandardLayoutPolicy,), {"storage": lambda self, format: KvStorage("int8", 2, 2)})()

    k, _, aux, _ = kv_specs(config(quant_policy="int8"), GEOMETRY, policy)

    assert (k.dtype, aux.dtype) == ("int8", "float16")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"quant_policy": "int4", "head_dim": 63}, "k_cache: head size 63 is no multiple of 2"),
        ({"quant_policy": "int4", "v_head_dim": 33}, "v_cache: head size 33 is no multiple of 2"),
        ({"quant_policy": "turbo_quant", "head_dim": 96}, "Hadamard matrix; head size 96 must be a power of two"),
        ({"quant_policy": "turbo_quant", "v_head_dim": 2}, "v_cache: head size 2 is no multiple of 4"),
        ({"quant_policy": "turbo_quant", "v_head_dim": 0}, "head size 0 must be a power of two"),
    ],
)
def test_a_head_that_cannot_be_packed_is_refused(more, message):
    # W31: assertions, which python -O drops.
    with pytest.raises(PlanError, match=message):
        kv_specs(config(**more), GEOMETRY, POLICY)


def test_v_may_have_its_own_head_size():
    k, v = kv_specs(config(v_head_dim=32), GEOMETRY, POLICY)

    assert (k.shape, v.shape) == ((16, 8, 64), (16, 8, 32))


@pytest.mark.parametrize(
    ("heads", "ranks", "rank", "shard"),
    [
        (8, 1, 0, HeadShard(8, 0, 8)),
        (8, 4, 1, HeadShard(8, 2, 2)),
        (8, 8, 7, HeadShard(8, 7, 1)),
        (2, 8, 5, HeadShard(2, 1, 1, replica=1)),  # ranks 4 to 7 hold head 1
        (1, 8, 7, HeadShard(1, 0, 1, replica=7)),
    ],
)
def test_head_shard_divides_or_replicates(heads, ranks, rank, shard):
    assert head_shard(heads, ranks, rank) == shard


@pytest.mark.parametrize(("heads", "ranks"), [(8, 3), (6, 4), (2, 3)])
def test_heads_that_are_neither_divided_nor_replicated_are_refused(heads, ranks):
    with pytest.raises(PlanError, match=f"{heads} KV heads on {ranks} tensor-parallel ranks: .* choose a tensor") as e:
        kv_specs(config(num_kv_heads=heads, tp_size=ranks), GEOMETRY, POLICY)

    assert (e.value.num_kv_heads, e.value.tp_size) == (heads, ranks)


def test_a_rank_holds_its_heads():
    k, *_ = kv_specs(config(tp_size=4, tp_rank=3), GEOMETRY, POLICY)

    assert (k.shape, k.shard) == ((16, 2, 64), HeadShard(8, 6, 2))


def test_every_policy_has_a_storage():
    assert not [fmt for fmt in set(QUANT_POLICIES.values()) if isinstance(POLICY.storage(fmt), str)]
