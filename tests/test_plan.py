from __future__ import annotations

import pytest
from samples import POLICY, Index, consumer_spec, kv_plan, layer_spec

from cachecore import (
    BlockCacheGeometry,
    CacheTensorSpec,
    GroupSpec,
    LayoutError,
    LayoutHints,
    PlanError,
    PluginError,
    StandardLayoutPolicy,
    plan_from_specs,
)
from cachecore.layout_kinds import packed_layout

PAGE = BlockCacheGeometry(64, 16)


@pytest.mark.parametrize("name", ["", None, 4])
def test_group_needs_a_name(name):
    with pytest.raises(PlanError, match=r"group name is .*; expected a non-empty string"):
        GroupSpec(name, PAGE)


def test_group_needs_a_geometry():
    with pytest.raises(TypeError, match=r"group 'full': geometry must be a BlockCacheGeometry, not 64"):
        GroupSpec("full", 64)


@pytest.mark.parametrize("window", [0, -128])
def test_a_window_must_be_positive(window):
    # W64: a window of 0 selected the window manager, which then asserted.
    with pytest.raises(PlanError, match=f"group 'sliding': window is {window}; expected a positive integer"):
        GroupSpec("sliding", PAGE, window)


def test_a_window_is_kept_as_a_plain_integer():
    assert type(GroupSpec("sliding", PAGE, Index(128)).window) is int


@pytest.mark.parametrize("window", [128.0, "128", True])
def test_a_window_of_a_wrong_type_is_a_type_error(window):
    with pytest.raises(TypeError, match=r"group 'sliding': window must be an integer"):
        GroupSpec("sliding", PAGE, window)


def test_a_plan_records_what_it_was_made_of():
    plan = kv_plan(geometry=PAGE_4_OF_16, group="sliding", window=128)

    assert (plan.name, plan.group.window, plan.geometry.pages_per_block) == ("sliding", 128, 4)
    assert (plan.policy, plan.policy_version) == ("standard", "2")
    assert [spec.name for spec in plan.specs] == ["k_cache", "v_cache"]
    assert (plan.layout.kind, plan.host_layout.kind) == ("packed", "block-major")


PAGE_4_OF_16 = BlockCacheGeometry(16, 4)


def test_block_nbytes_counts_the_pages_of_a_block():
    # 2 layers * 512 bytes a page * 4 pages
    assert kv_plan(geometry=PAGE_4_OF_16).block_nbytes() == 4096
    # without padding on the host: 2 layers * 256 bytes * 4
    assert kv_plan(geometry=PAGE_4_OF_16).block_nbytes(host=True) == 2048


def test_a_plan_is_hashable_and_equal_by_value():
    assert hash(kv_plan()) == hash(kv_plan())
    assert kv_plan() == kv_plan()
    assert kv_plan() != kv_plan(window=8)


def test_a_plan_without_specs_is_refused():
    with pytest.raises(PlanError, match=r"group 'index' has no caches; a plan needs at least one") as caught:
        plan_from_specs([], PAGE, POLICY, group="index")

    assert caught.value.group == "index"


@pytest.mark.parametrize("tokens_per_entry", [5, 128])
def test_a_compressed_cache_needs_a_kernel_block_that_is_a_multiple(tokens_per_entry):
    # W29: a kernel block of 64 with a ratio of 128 gave pages of zero bytes.
    spec = consumer_spec(shape=(3, 8), tokens_per_entry=tokens_per_entry)

    with pytest.raises(
        PlanError, match=f"cache 'index' keeps one entry for {tokens_per_entry} tokens, but .* has 16"
    ) as e:
        plan_from_specs([spec], PAGE, POLICY)
    assert e.value.cache == "index"


@pytest.mark.parametrize(("tokens_per_entry", "entries"), [(1, 16), (4, 4), (16, 1)])
def test_the_token_axis_holds_the_kernel_block(tokens_per_entry, entries):
    spec = consumer_spec(shape=(entries, 8), axes=("token", "other"), tokens_per_entry=tokens_per_entry)

    assert plan_from_specs([spec], PAGE, POLICY).specs == (spec,)


@pytest.mark.parametrize(("tokens_per_entry", "entries", "fit"), [(1, 64, 16), (4, 16, 4), (4, 3, 4)])
def test_a_token_axis_that_is_no_kernel_block_is_refused(tokens_per_entry, entries, fit):
    spec = consumer_spec(shape=(entries, 8), axes=("token", "other"), tokens_per_entry=tokens_per_entry)

    with pytest.raises(PlanError, match=f"cache 'index': shape .* holds {entries} entries .* 16 tokens, so {fit} fit"):
        plan_from_specs([spec], PAGE, POLICY)


def test_the_policy_may_refuse_the_geometry_first():
    class Camb(StandardLayoutPolicy):
        def check_geometry(self, specs, geometry):
            raise PlanError(f"kernel blocks of {geometry.page_size} are not served; use 16")

    with pytest.raises(PlanError, match=r"kernel blocks of 4 are not served; use 16"):
        plan_from_specs([layer_spec()], BlockCacheGeometry(4), Camb())


@pytest.mark.parametrize("method", ["select_block_layout", "select_host_layout"])
def test_a_policy_that_returns_no_layout_is_named(method):
    policy = type("Vendor", (StandardLayoutPolicy,), {method: lambda self, *given: "packed"})()

    with pytest.raises(
        PluginError, match=rf"policy 'standard': {method}\(\) returned 'packed'; expected a CacheLayout"
    ):
        plan_from_specs([layer_spec()], BlockCacheGeometry(4), policy)


@pytest.mark.parametrize("method", ["check_geometry", "select_block_layout", "select_host_layout"])
@pytest.mark.parametrize("error", [SystemExit(2), ZeroDivisionError("x")])
def test_a_policy_that_raises_is_named(method, error):
    def raising(self, *given):
        raise error

    policy = type("Vendor", (StandardLayoutPolicy,), {"name": "vendor", method: raising})()

    with pytest.raises(PluginError, match=rf"policy 'vendor': {method}\(\) raised {type(error).__name__}: {error}"):
        plan_from_specs([layer_spec()], BlockCacheGeometry(4), policy)


def test_a_layout_without_all_rows_is_refused_before_the_host_takes_its_order():
    policy = type(
        "Vendor", (StandardLayoutPolicy,), {"select_block_layout": lambda self, specs, *given: packed_layout([])}
    )

    with pytest.raises(LayoutError, match=r"layout 'packed' places 0 specs, but there are 1"):
        plan_from_specs([layer_spec()], BlockCacheGeometry(4), policy())


def test_a_policy_gets_the_hints():
    plan = plan_from_specs([layer_spec()], PAGE_4_OF_16, POLICY, hints=LayoutHints(base_alignment=1 << 21))

    assert plan.layout.pools[0].base_alignment == plan.host_layout.pools[0].base_alignment == 1 << 21


def test_a_plan_of_many_consumers_has_each_once():
    spec = CacheTensorSpec(
        name="index", shape=(4, 8), dtype="uint8", row_ids=tuple(range(1000)), consumer_rows=tuple(range(1000))
    )

    plan = plan_from_specs([spec], BlockCacheGeometry(4), POLICY)

    assert {row.outer for row in plan.layout.slices[0]} == set(range(1000))


@pytest.mark.parametrize(
    ("specs", "policy", "hints", "message"),
    [
        ([3], POLICY, None, "specs must be of type CacheTensorSpec, not 3"),
        (3, POLICY, None, "specs must be a sequence, not 3"),
        ([layer_spec()], None, None, "policy must be a LayoutPolicy, not None"),
        ([layer_spec()], POLICY, 3, "hints must be LayoutHints, not 3"),
    ],
)
def test_a_plan_of_wrong_parts_is_a_type_error(specs, policy, hints, message):
    with pytest.raises(TypeError, match=message):
        plan_from_specs(specs, BlockCacheGeometry(4), policy, hints=hints)
