"""What is planned for each vendor, where none of them is."""

from __future__ import annotations

import pytest
from cachecore_ascend_dlinfer import ASCEND, CAMB, MACA, DlinferPolicy
from cachecore_ascend_dlinfer.vendors import ASCEND_310P, ASCEND_910, family_of, planned_soc

from cachecore import (
    BlockCacheGeometry,
    KvCacheConfig,
    LayoutHints,
    PlanError,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.kv import kv_specs
from cachecore.plan import plan_from_specs

KV = KvCacheConfig(layers=3, num_kv_heads=2, head_dim=128, dtype="bfloat16")


def specs_of(policy: DlinferPolicy, page: int = 128, config: KvCacheConfig = KV):
    return kv_specs(config, BlockCacheGeometry(page), policy)


def test_k_and_v_are_dense_tensors_apart():
    policy = DlinferPolicy()
    plan = plan_from_specs(specs_of(policy), BlockCacheGeometry(128), policy)

    # 128 tokens * 2 heads * 128 dims * 2 bytes = 65,536 bytes a page; 3 rows; K and V a pool each
    assert [(pool.outer, pool.inner) for pool in plan.layout.pools] == [(3, 65_536), (3, 65_536)]
    assert [rows[1].pool for rows in plan.layout.slices] == [0, 1]
    assert plan.layout.padding_nbytes == 0


def test_host_tier_mirrors_the_device_unless_one_run_is_asked_for():
    policy = DlinferPolicy()
    mirror = plan_from_specs(specs_of(policy), BlockCacheGeometry(128), policy)
    one_run = plan_from_specs(
        specs_of(policy), BlockCacheGeometry(128), policy, hints=LayoutHints(one_run_per_block=True)
    )

    assert mirror.host_layout == mirror.layout
    assert (one_run.layout.kind, one_run.host_layout.kind) == ("contiguous", "block-major")


def test_transfer_gets_pools_that_start_at_2_mib():
    policy, hints = DlinferPolicy(), LayoutHints(base_alignment=2 << 20)
    plan = plan_from_specs(specs_of(policy), BlockCacheGeometry(128), policy, hints=hints)

    assert {pool.base_alignment for pool in (*plan.layout.pools, *plan.host_layout.pools)} == {2 << 20}


def test_states_are_dense_a_layer():
    requests = (StateCacheRequest(name="conv", shape=(6, 4), dtype="bfloat16", layers=(0, 2)),)
    (plan,) = plan_from_states(requests, DlinferPolicy())

    # 6 * 4 * 2 = 48 bytes a slot, 2 rows, nothing between slots
    assert [(pool.outer, pool.inner) for pool in plan.layout.pools] == [(2, 48)]


@pytest.mark.parametrize(
    ("vendor", "page", "shape"),
    [(ASCEND, 128, (128, 2, 128)), (CAMB, 16, (2, 16, 128)), (MACA, 64, (64, 2, 128))],
    ids=["ascend", "camb", "maca"],
)
def test_axis_order_of_a_page(vendor, page, shape):
    assert [spec.shape for spec in specs_of(DlinferPolicy(vendor), page)] == [shape, shape]


def test_int8_has_no_scales_in_the_cache():
    config = KvCacheConfig(layers=1, num_kv_heads=2, head_dim=128, dtype="bfloat16", quant_policy="int8")

    assert [(spec.name, spec.dtype) for spec in specs_of(DlinferPolicy(), 128, config)] == [
        ("k_cache", "int8"),
        ("v_cache", "int8"),
    ]


@pytest.mark.parametrize("fmt", ["fp8", "fp8_e5m2", "fp8_ds_mla"])
def test_fp8_is_refused_with_the_reason(fmt):
    reason = DlinferPolicy().storage(fmt)

    assert isinstance(reason, str)
    assert "known to work on CUDA only" in reason


@pytest.mark.parametrize(("vendor", "fmt"), [(ASCEND, "int4_asym"), (ASCEND, "turbo"), (CAMB, "int8_asym")])
def test_formats_without_a_kernel_are_refused(vendor, fmt):
    assert vendor.title in str(DlinferPolicy(vendor).storage(fmt))


@pytest.mark.parametrize(
    ("vendor", "soc", "page", "head_dim", "reason"),
    [
        (ASCEND, ASCEND_910, 64, 128, None),
        (ASCEND, ASCEND_910, 128, 256, None),
        (ASCEND, ASCEND_910, 24, 128, "multiple of 16 up to 128"),
        (ASCEND, ASCEND_910, 256, 128, "multiple of 16 up to 128"),
        (ASCEND, ASCEND_910, 64, 512, "at most 32 tokens"),
        (ASCEND, ASCEND_910, 32, 512, None),
        (ASCEND, ASCEND_310P, 128, 128, None),
        (ASCEND, ASCEND_310P, 64, 256, None),
        (ASCEND, ASCEND_310P, 128, 256, "at most 16384 elements"),  # 128 * 256 = 32,768
        (ASCEND, ASCEND_310P, 32, 128, "multiple of 64 up to 128"),
        (ASCEND, ASCEND_310P, 64, 20, "stores the 40 elements of a token in multiples of 16"),  # 2 heads * 20
        (ASCEND, ASCEND_910, 64, 20, None),
        (CAMB, None, 16, 128, None),
        (CAMB, None, 64, 128, "pages of 16 tokens"),
        (MACA, None, 17, 128, None),
    ],
)
def test_pages_that_kernels_take(vendor, soc, page, head_dim, reason):
    policy = DlinferPolicy(vendor, soc)
    config = KvCacheConfig(layers=1, num_kv_heads=2, head_dim=head_dim, dtype="float16")
    geometry = BlockCacheGeometry(page)

    if reason is None:
        policy.check_geometry(kv_specs(config, geometry, policy), geometry)
    else:
        with pytest.raises(PlanError, match=reason):
            policy.check_geometry(kv_specs(config, geometry, policy), geometry)


def test_310p_is_planned_and_sized_as_its_nz_pages_are():
    policy = DlinferPolicy(ASCEND, ASCEND_310P)
    plan = plan_from_specs(specs_of(policy), BlockCacheGeometry(128), policy)

    # NZ: (2 heads * 128 dims / 16, 128 tokens, 16) * 2 bytes = 65,536 bytes a page, as (128, 2, 128) has
    assert [pool.inner for pool in plan.layout.pools] == [16 * 128 * 16 * 2] * 2


def test_310p_has_no_latent_kernel():
    policy = DlinferPolicy(ASCEND, ASCEND_310P)
    config = KvCacheConfig(layers=1, num_kv_heads=1, latent_dim=512, rope_dim=64, dtype="float16")
    geometry = BlockCacheGeometry(64)

    with pytest.raises(PlanError, match="no kernel for a latent of 576 elements"):
        policy.check_geometry(kv_specs(config, geometry, policy), geometry)


def test_families_by_number():
    assert [family and family.name for family in map(family_of, (104, 202, 223, 255, 260))] == [
        "910",
        "310P",
        "910",
        "910",
        None,  # Ascend 950: what it takes was not checked
    ]


def test_planned_family_is_named_by_the_environment():
    assert planned_soc({}) is ASCEND_910
    assert planned_soc({"CACHECORE_ASCEND_SOC": "310P"}) is ASCEND_310P
    assert planned_soc({"CACHECORE_ASCEND_SOC": "A9"}) == "CACHECORE_ASCEND_SOC is 'A9'; expected 910 or 310P"
    assert {DlinferPolicy().name, DlinferPolicy(ASCEND, ASCEND_310P).name} == {"dlinfer-ascend", "dlinfer-ascend-310p"}


def test_policies_load_and_plan_where_torch_is_not(fresh):
    code = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torch_npu", "dlinfer", "numpy"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
from cachecore_ascend_dlinfer import plugin
from cachecore import BlockCacheGeometry, KvCacheConfig
from cachecore.kv import kv_specs
from cachecore.plan import plan_from_specs
kv = KvCacheConfig(layers=3, num_kv_heads=2, head_dim=128, dtype="bfloat16")
for info in plugin.cachecore_register_backends():
    policy, geometry = info.load_policy(), BlockCacheGeometry(16)
    print(info.name, policy.name, plan_from_specs(kv_specs(kv, geometry, policy), geometry, policy).layout.kind)
"""
    done = fresh("-c", code)

    assert done.stdout.splitlines() == [
        "ascend dlinfer-ascend contiguous",
        "camb dlinfer-camb contiguous",
        "maca dlinfer-maca contiguous",
    ], done.stderr
