from __future__ import annotations

from dataclasses import replace

import pytest
from samples import Index, consumer_spec, kv_plan, layer_spec, plan_with

from cachecore import BlockCacheGeometry, CacheSlice, LayoutError, PlanError, PluginError, PoolSpec
from cachecore.group_plan import check_layout, check_names
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout, row_layout


def test_a_plan_without_specs_is_refused():
    with pytest.raises(PlanError, match=r"group 'full' has no caches; a plan needs at least one"):
        plan_with([], packed_layout([]))


@pytest.mark.parametrize("tier", ["layout", "host_layout"])
def test_a_layout_of_other_specs_is_refused_in_both_tiers(tier):
    # W21: a plan was accepted whose layout was built from other specs.
    plan = kv_plan()
    other = packed_layout([layer_spec("k_cache", shape=(4, 2, 4)), layer_spec("v_cache")])

    with pytest.raises(
        LayoutError, match=r"row 0 \(id 0\) of cache 'k_cache' is given 64 bytes an entry, but needs 128"
    ):
        replace(plan, **{tier: other})


def test_a_device_row_that_asked_for_contiguity_must_have_it():
    specs = [consumer_spec(per_row_contiguous=True)]

    with pytest.raises(LayoutError, match=r"asked for a contiguous row"):
        plan_with(specs, row_layout(specs))
    assert plan_with(specs, contiguous_layout(specs), row_layout(specs)).host_layout.kind == "row"


@pytest.mark.parametrize(("tier", "told"), [("layout", "device"), ("host_layout", "host")])
def test_an_entry_that_is_neither_a_page_nor_a_block_is_refused(tier, told):
    plan = kv_plan(geometry=BlockCacheGeometry(16, 4))

    with pytest.raises(PlanError, match=f"the {told} layout has 2 pages an entry, but a block has 4"):
        replace(plan, **{tier: block_major_layout(plan.specs, 2)})


@pytest.mark.parametrize("field", ["policy", "policy_version"])
def test_a_policy_is_recorded_by_name_and_version(field):
    with pytest.raises(TypeError, match=f"group 'full': {field} must be a string, not 1"):
        replace(kv_plan(), **{field: 1})


@pytest.mark.parametrize(
    ("logical", "entries", "host_entries"),
    [(4, 3, 3), (16, 12, 3)],  # 3 blocks of 1 or of 4 pages; the host's entry is a whole block
)
def test_entries_are_pages_or_blocks(logical, entries, host_entries):
    plan = kv_plan(geometry=BlockCacheGeometry(logical, 4))

    assert (plan.num_entries(3), plan.num_entries(3, host=True)) == (entries, host_entries)


def test_bytes_of_both_tiers():
    plan = kv_plan(geometry=BlockCacheGeometry(16, 4))

    # device: 2 layers * 512 bytes a page * 4 pages; host: 2 layers * (128 + 128) * 4, no padding
    assert (plan.unit_nbytes(), plan.unit_nbytes(host=True)) == (4096, 2048)
    assert (plan.nbytes(3), plan.nbytes(3, host=True)) == (12288, 6144)
    assert (plan.reserved_nbytes(3), plan.reserved_nbytes(3, host=True)) == (12288, 6144)


def test_reserved_bytes_hold_the_room_that_aligns_a_pool():
    specs = [layer_spec()]
    plan = plan_with(specs, packed_layout(specs, base_alignment=4096))

    # 2 layers * 256 bytes * 3 pages
    assert plan.reserved_nbytes(3) == 1536 + 4096


def test_a_negative_count_is_refused():
    # W22
    with pytest.raises(PlanError, match=r"group 'full': num_blocks is -1; expected zero or more") as caught:
        kv_plan().nbytes(-1)

    assert caught.value.value == -1


@pytest.mark.parametrize("wrong", [1.0, "3", None, True])
def test_a_count_of_a_wrong_type_is_a_type_error(wrong):
    with pytest.raises(TypeError, match=r"group 'full': num_blocks must be an integer"):
        kv_plan().reserved_nbytes(wrong)


def test_a_count_is_read_through_the_index_protocol():
    assert kv_plan().nbytes(Index(3)) == kv_plan().nbytes(3)


def test_a_policy_that_returns_no_layout_is_named():
    with pytest.raises(PluginError, match=r"select_block_layout\(\) returned None; expected a CacheLayout"):
        check_layout(None, [layer_spec()], "select_block_layout()")


def test_one_name_cannot_be_found_both_by_layer_and_by_row():
    # "An operator that requests the name k_cache is rejected."
    with pytest.raises(
        PlanError, match=r"here: cache 'k_cache' is both standard K/V, found by layer, and an"
    ) as caught:
        check_names([layer_spec("k_cache"), consumer_spec("k_cache")], "here")

    assert caught.value.cache == "k_cache"


def test_a_layer_must_not_stand_in_two_tensors():
    with pytest.raises(PlanError, match=r"here: layer 1 of cache 'k_cache' stands in two tensors; a row is placed"):
        check_names([layer_spec(rows=3), layer_spec(row_ids=(7, 2, 1))], "here")


def test_a_consumer_row_must_not_stand_in_two_tensors():
    specs = [consumer_spec(rows=4), consumer_spec(shape=(4, 16), row_ids=(8, 9), consumer_rows=(3, 2))]

    with pytest.raises(PlanError, match=r"here: consumer row 2 of cache 'index' stands in two tensors"):
        check_names(specs, "here")


def test_a_row_id_must_not_stand_in_two_tensors():
    # Consumer rows 0 and 1, but both claim to be layer 5: migration could not tell them apart.
    specs = [
        consumer_spec(row_ids=(5,), consumer_rows=(0,)),
        consumer_spec(shape=(4, 16), row_ids=(5,), consumer_rows=(1,)),
    ]

    with pytest.raises(PlanError, match=r"here: row id 5 of cache 'index' stands in two tensors"):
        check_names(specs, "here")


def test_rows_of_one_name_may_be_spread_over_tensors():
    # narrow, wide, narrow: rows 0 and 2, and row 1
    specs = [
        consumer_spec(row_ids=(0, 2), consumer_rows=(0, 2)),
        consumer_spec(shape=(4, 16), row_ids=(1,), consumer_rows=(1,)),
    ]

    check_names(specs, "here", whole_model=True)


def test_consumer_rows_must_be_complete_over_the_whole_model():
    specs = [consumer_spec(row_ids=(0, 1), consumer_rows=(0, 3)), consumer_spec("other")]

    check_names(specs, "one group")
    with pytest.raises(PlanError, match=r"here: consumer row 1 of cache 'index' is missing") as caught:
        check_names(specs, "here", whole_model=True)
    assert caught.value.cache == "index"


def test_layers_need_not_be_complete():
    check_names([layer_spec(row_ids=(16, 31))], "a pipeline stage", whole_model=True)


def test_zero_byte_rows_are_placed_like_any_other():
    specs = [layer_spec(), layer_spec("v_cache", shape=(4, 1, 0))]
    plan = plan_with(specs, packed_layout(specs))

    assert plan.layout.pools == (PoolSpec(2, 256, 512, 256),)
    assert plan.layout.slices[1] == (CacheSlice(0, 0, 256, 0), CacheSlice(0, 1, 256, 0))
