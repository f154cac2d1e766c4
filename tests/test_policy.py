from __future__ import annotations

import re

import pytest
from samples import POLICY, consumer_spec, layer_spec, plan_set

from cachecore import BlockCacheGeometry, KvStorage, LayoutHints, LayoutPolicy, PlanError, plan_from_specs
from cachecore.layout_kinds import packed_layout
from cachecore.sizing import fit

BLOCK_OF_4 = BlockCacheGeometry(16, 4)


def select(specs, **hints):
    return POLICY.select_block_layout(specs, BLOCK_OF_4, LayoutHints(**hints))


def dense(name="dsa"):
    return consumer_spec(name, per_row_contiguous=True)


@pytest.mark.parametrize(
    ("specs", "kind"),
    [
        ([layer_spec("k"), layer_spec("v")], "packed"),
        ([consumer_spec("a"), consumer_spec("b", shape=(4, 16))], "row"),
        ([dense("a"), dense("b")], "contiguous"),
        ([layer_spec("k", per_row_contiguous=True)], "contiguous"),  # the flag wins
        ([layer_spec("k"), dense(), consumer_spec("b"), layer_spec("v")], "composite(packed, contiguous, row, packed)"),
        ([layer_spec("k"), layer_spec("v"), layer_spec("w", rows=3)], "composite(packed, packed)"),
    ],
    ids=["kv", "operators", "dense", "dense kv", "mixed", "row counts"],
)
def test_runs_of_one_kind_share_a_layout(specs, kind):
    layout = select(specs)

    assert layout.kind == kind
    layout.validate(specs)


def test_one_run_per_block_is_page_major():
    layout = select([layer_spec("k"), layer_spec("v")], one_run_per_block=True)

    # 2 tensors * 2 rows, each of 128 bytes filled up to 256
    assert (layout.kind, layout.pages_per_entry) == ("page-major", 1)
    assert [(pool.outer, pool.inner) for pool in layout.pools] == [(1, 1024)]


def test_one_run_per_block_is_refused_for_rows_that_must_be_contiguous():
    with pytest.raises(PlanError, match="one_run_per_block") as refused:
        select([layer_spec("k"), dense()], one_run_per_block=True)

    assert refused.value.cache == dense().name


def test_states_are_packed_and_the_host_tier_is_block_major():
    specs = [layer_spec("conv", rows=3), layer_spec("ssm")]
    device = POLICY.select_state_layout(specs, LayoutHints())
    host = POLICY.select_state_host_layout(specs, device, LayoutHints())

    assert (device.kind, host.kind, host.pages_per_entry) == ("packed-state", "block-major", 1)


@pytest.mark.parametrize(
    ("specs", "hints", "kind"),
    [
        ([layer_spec("k", rows=1)], {"one_run_per_block": True}, "page-major"),  # half of it padding, but asked for
        ([layer_spec("k", (4, 15, 32), rows=1)], {}, "packed"),  # 3,840 bytes, a multiple of 256: no padding
        ([layer_spec("k", (4, 15, 32), rows=1, page_stride_multiple=4096)], {}, "packed"),  # 256 of 4,096: a sixteenth
        ([layer_spec("k", (4, 14, 32), rows=1, page_stride_multiple=4096)], {}, "block-major"),  # 512 are more
        ([layer_spec("k", (4, 16, 32), rows=1, alignment=512)], {}, "packed"),  # as every buffer is
        ([layer_spec("k", (4, 16, 32), rows=1, alignment=1024)], {}, "block-major"),  # a buffer is 1,024 bytes larger
        (
            [layer_spec("k", (4, 16, 32), rows=1, alignment=1024)],
            {"base_alignment": 1024},
            "packed",
        ),  # block-major's too
        ([layer_spec("k", (4, 16, 32), rows=1, alignment=1024)], {"one_run_per_block": True}, "page-major"),
        ([layer_spec("k", (4, 15, 32), rows=2)], {}, "block-major"),  # two runs a block
        ([layer_spec("k", (4, 15, 32), rows=1), layer_spec("v", (4, 1, 0), rows=3)], {}, "composite(packed, packed)"),
        ([layer_spec("k", (4, 15, 32), rows=1), dense()], {}, "block-major"),  # two pools
    ],
    ids=[
        "asked for",
        "one row",
        "a sixteenth",
        "more padding",
        "start at no cost",
        "start at a cost",
        "start as asked",
        "start at a cost, asked for",
        "two rows",
        "a pool without bytes",
        "two pools",
    ],
)
def test_the_host_tier_takes_a_device_layout_whose_block_is_one_run(specs, hints, kind):
    device = select(specs, **hints)

    host = POLICY.select_host_layout(specs, BLOCK_OF_4, device, LayoutHints(**hints))

    assert host.kind == kind
    assert (host == device) is (kind != "block-major")


def test_the_host_tier_starts_as_asked_where_the_device_does_not():
    class Deaf(type(POLICY)):
        def select_block_layout(self, specs, geometry, hints):
            return super().select_block_layout(specs, geometry, LayoutHints(one_run_per_block=True))

    specs = [layer_spec("k", (4, 2, 16)), layer_spec("v", (4, 2, 16))]  # 256 bytes, no padding
    hints = LayoutHints(base_alignment=1 << 21)
    device = Deaf().select_block_layout(specs, BLOCK_OF_4, hints)

    host = Deaf().select_host_layout(specs, BLOCK_OF_4, device, hints)

    assert (host.kind, host.pools[0].base_alignment) == ("block-major", 1 << 21)


def test_a_host_tier_holds_as_many_blocks_as_its_memory_has_room_for():
    page = layer_spec("k", (1 << 20,), dtype="uint8", rows=1, alignment=1 << 20)  # a page of 1 MiB, without padding

    plan = plan_from_specs([page], BlockCacheGeometry(4), POLICY)

    assert fit(plan_set(plan), memory_nbytes=4 << 20, host=True) == {"full": 4}


def test_the_host_tier_of_a_vendors_coarse_starts_fits_a_small_memory():
    class Coarse(type(POLICY)):
        def select_block_layout(self, specs, geometry, hints):
            return packed_layout(specs, base_alignment=2 << 20)

    plan = plan_from_specs([layer_spec("k", (4, 16, 32), rows=1)], BlockCacheGeometry(4), Coarse())

    assert plan.host_layout.kind == "block-major"
    assert fit(plan_set(plan), memory_nbytes=2 << 20, host=True) == {"full": 512}


def test_the_host_tier_of_large_states_is_the_devices():
    # 30 * 3 = 90 bytes, then 4,000 * 4 twice: 32,256 with 166 of padding; slots move without being taken apart
    specs = [layer_spec("conv", (3, 5), rows=3), layer_spec("ssm", (4000,), dtype="float32")]
    device = POLICY.select_state_layout(specs, LayoutHints())

    assert POLICY.select_state_host_layout(specs, device, LayoutHints()) == device


def test_the_host_tier_keeps_the_devices_order():
    specs = [layer_spec("k"), layer_spec("v")]

    host = POLICY.select_host_layout(specs, BLOCK_OF_4, select(specs), LayoutHints())

    # k0, v0, k1, v1; four pages of 128 bytes each
    assert [[row.offset for row in rows] for rows in host.slices] == [[0, 1024], [512, 1536]]


@pytest.mark.parametrize("hint", [512, 4096, 1 << 21])
def test_base_alignment_reaches_every_pool(hint):
    specs = [layer_spec("k"), dense(), consumer_spec("b")]
    device = select(specs, base_alignment=hint)
    host = POLICY.select_host_layout(specs, BLOCK_OF_4, device, LayoutHints(base_alignment=hint))
    states = POLICY.select_state_layout(specs[:1], LayoutHints(base_alignment=hint))

    assert {pool.base_alignment for layout in (device, host, states) for pool in layout.pools} == {hint}


def test_pages_are_token_major_by_default():
    assert POLICY.kv_order("plain") == ("token", "head", "other")


@pytest.mark.parametrize(
    ("format", "storage"),
    [
        ("plain", KvStorage(None, 0, 0, 1, 1)),
        ("int8_asym", KvStorage("uint8", 2, 2, 1, 1)),
        ("int4_asym", KvStorage("uint8", 2, 2, 2, 2)),
        ("turbo", KvStorage("uint8", 2, 1, 2, 4)),
        ("fp8", KvStorage("float8_e4m3fn", 0, 0, 1, 1)),
        ("fp8_e5m2", KvStorage("float8_e5m2", 0, 0, 1, 1)),
        ("fp8_ds_mla", KvStorage("float8_e4m3fn", 0, 0, 1, 1)),
    ],
)
def test_storage_of_a_known_format(format, storage):
    assert POLICY.storage(format) == storage


def test_storage_of_an_unknown_format_is_the_reason_why_not():
    assert "K/V format 'int3' is unknown; known are plain, int8_asym" in POLICY.storage("int3")


def test_any_geometry_is_fine_by_default():
    assert POLICY.check_geometry([layer_spec()], BlockCacheGeometry(7)) is None


def test_a_policy_must_choose_both_layouts():
    class Half(LayoutPolicy):
        def select_block_layout(self, specs, geometry, hints):
            return None

    with pytest.raises(TypeError, match=r"abstract method '?select_state_layout'?"):
        Half()


def test_name_and_version_are_recorded():
    assert (POLICY.name, POLICY.version) == ("standard", "2")


@pytest.mark.parametrize("alignment", [0, -512, 3, 576])
def test_a_base_alignment_that_is_no_power_of_two_is_refused(alignment):
    with pytest.raises(PlanError, match=rf"base_alignment is {alignment}; expected a positive"):
        LayoutHints(base_alignment=alignment)


@pytest.mark.parametrize("wrong", ["false", "no", 2, 0, None, 1.0], ids=repr)
def test_one_run_per_block_is_a_bool(wrong):
    with pytest.raises(TypeError, match=re.escape(f"one_run_per_block must be a bool, not {wrong!r}")):
        LayoutHints(wrong)
