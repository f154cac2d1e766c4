from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from samples import POLICY, consumer_spec, kv_plan, layer_spec, plan_set, plan_with
from strategies import plans

from cachecore import (
    BlockCacheGeometry,
    CacheLayout,
    CachePlanSet,
    CacheSlice,
    LayoutHints,
    PoolSpec,
    StandardLayoutPolicy,
    StateCacheRequest,
    plan_from_specs,
    plan_from_states,
)
from cachecore.explain import explain_plan, explain_text
from cachecore.explain.reasons import shard_reason
from cachecore.explain.text import render
from cachecore.layout_kinds import block_major_layout
from cachecore.meaning import HeadShard

PAGE = BlockCacheGeometry(4)


def planned(*specs, geometry=PAGE, **more) -> CachePlanSet:
    return plan_set(plan_from_specs(specs, geometry, POLICY, **more))


def only_group(plans: CachePlanSet, counts=None) -> dict:
    return explain_plan(plans, counts)["groups"][0]


def test_bytes_of_packed_kv_are_all_accounted_for():
    # K: 4 * 3 * 24 * 2 = 576 bytes; V: 4 * 3 * 10 * 2 = 240 bytes. V starts at 768, the next entry at 1024.
    specs = layer_spec("k_cache", (4, 3, 24), rows=5), layer_spec("v_cache", (4, 3, 10), rows=5)
    device = only_group(planned(*specs))["device"]

    assert (device["unit_nbytes"], device["payload_nbytes"], device["padding_nbytes"]) == (5120, 4080, 1040)
    assert device["token_nbytes"] == 1280
    assert device["pools"][0]["gaps"] == [
        {
            "first_outer": 0,
            "num_outer": 5,
            "offset": 576,
            "nbytes": 192,
            "why": "v_cache starts at a multiple of 256, its alignment",
        },
        {
            "first_outer": 0,
            "num_outer": 5,
            "offset": 1008,
            "nbytes": 16,
            "why": (
                "the next entry starts at a multiple of 256: the strictest alignment asked for, by k_cache and v_cache"
            ),
        },
    ]


def test_every_row_is_told_with_its_place():
    group = only_group(plan_set(kv_plan(rows=2)))

    # 128 bytes a page, aligned to 256, K before V
    assert [tuple(row.values()) for row in group["device"]["pools"][0]["rows"]] == [
        ("k_cache", 0, 0, 0, None, 0, 0, 128),
        ("k_cache", 0, 1, 1, None, 1, 0, 128),
        ("v_cache", 1, 0, 0, None, 0, 256, 128),
        ("v_cache", 1, 1, 1, None, 1, 256, 128),
    ]
    assert list(group["device"]["pools"][0]["rows"][0]) == [
        *("cache", "spec", "row", "row_id", "consumer_row", "outer", "offset", "nbytes")
    ]


def test_counts_add_what_an_allocation_takes():
    group = only_group(plan_set(kv_plan(rows=2)), {"full": 10})

    # device: 2 rows * 512 bytes * 10; host: 2 rows * 2 * 128 bytes * 10
    assert group["num_units"] == 10
    assert (group["device"]["nbytes"], group["device"]["reserved_nbytes"]) == (10240, 10240)
    assert group["host"]["reserved_nbytes"] == 5120


def test_a_page_stride_multiple_is_the_reason_for_its_padding():
    # 584 bytes; entries a multiple of lcm(64, 576) = 576 bytes apart: 1152
    spec = consumer_spec("v4", (1, 584), rows=3, alignment=64, page_stride_multiple=576)
    (gap,) = only_group(planned(spec))["device"]["pools"][0]["gaps"]

    assert (gap["offset"], gap["nbytes"], gap["num_outer"]) == (584, 568, 3)
    assert gap["why"] == (
        "entries stand a multiple of 576 bytes apart: page_stride_multiple 576 (asked for by v4) "
        "together with alignment 64"
    )


def test_a_spec_filled_up_to_its_own_alignment_is_told():
    # a: 24 bytes filled up to 512; b may start at any multiple of 16
    specs = layer_spec("a", (4, 3), alignment=512, rows=1), layer_spec("b", (8,), alignment=16, rows=1)
    gap = only_group(planned(*specs))["device"]["pools"][0]["gaps"][0]

    assert (gap["offset"], gap["nbytes"]) == (24, 488)
    assert gap["why"] == "a is filled up to a multiple of 512, its alignment, and b starts at one of 16"


def test_host_rows_keep_less_alignment_and_say_so():
    # 3 tokens of 1 byte: rows 16 bytes apart on the host, 13 of them padding
    spec = consumer_spec("index", (3, 1), rows=2)
    host = only_group(planned(spec))["host"]

    assert host["pools"][0]["gaps"] == [
        {
            "first_outer": 0,
            "num_outer": 1,
            "offset": 3,
            "nbytes": 13,
            "why": "index starts at a multiple of 16, its alignment of 256 as far as this pool keeps it",
        },
        {
            "first_outer": 0,
            "num_outer": 1,
            "offset": 19,
            "nbytes": 13,
            "why": (
                "the next entry starts at a multiple of 16: one 16-byte word, the widest access of a kernel that "
                "gathers; caches asked for more"
            ),
        },
    ]


def cache(group: dict, name: str) -> dict:
    return next(cache for cache in group["caches"] if cache["name"] == name)


def test_each_kind_of_placement_has_its_reason():
    specs = [
        layer_spec("k_cache"),
        layer_spec("v_cache"),
        layer_spec("latent", (4, 1, 0)),
        consumer_spec("strided"),
        consumer_spec("dense", per_row_contiguous=True),
    ]
    group = only_group(planned(*specs))
    told = {name: tuple(cache(group, name)["device"].values()) for name in (spec.name for spec in specs)}

    assert told == {
        "k_cache": ("packed", "standard K/V, found by layer, with as many rows as v_cache: side by side in one pool"),
        "v_cache": ("packed", "standard K/V, found by layer, with as many rows as k_cache: side by side in one pool"),
        "latent": ("empty", "shape (4, 1, 0) holds no bytes, so it owns none; its view is an empty tensor"),
        "strided": (
            "row",
            (
                "an operator's own cache, found by consumer row; strides are accepted, so rows are padded to "
                "alignment 256 in a pool of its own"
            ),
        ),
        "dense": (
            "contiguous",
            "per_row_contiguous was asked: its kernel needs [rows, pages, *shape] dense, so no padding",
        ),
    }
    assert group["device"]["layout"] == "composite(packed, row, contiguous)"
    assert group["device"]["why"].startswith("the specs fall into runs of different kinds")


def test_kv_alone_in_its_pool_says_which_neighbour_differs():
    group = only_group(planned(layer_spec("k_cache", rows=6), layer_spec("v_cache", rows=4)))

    assert cache(group, "k_cache")["device"]["why"] == (
        "standard K/V, found by layer, alone in its pool; its neighbours have 4 rows, it has 6"
    )


def test_one_run_a_block_is_told_as_asked_for():
    plans = planned(
        layer_spec("k_cache"), geometry=PAGE, hints=LayoutHints(one_run_per_block=True, base_alignment=4096)
    )
    device = only_group(plans)["device"]

    assert "as LayoutHints.one_run_per_block asked" in device["why"]
    assert device["pools"][0]["base_alignment_why"] == (
        "LayoutHints.base_alignment; 4 KiB more are taken once, so that the start can be moved there"
    )


class BlocksInOneRun(StandardLayoutPolicy):
    """A vendor's policy that lays every block out as one run, whatever is asked."""

    name = "one-run"

    def select_block_layout(self, specs, geometry, hints):
        return super().select_block_layout(specs, geometry, replace(hints, one_run_per_block=True))


@pytest.mark.parametrize("kind", ["page-major", "block-major"])
def test_one_run_that_nobody_asked_for_is_told_as_the_policys(kind):
    class Policy(BlocksInOneRun):
        def select_block_layout(self, specs, geometry, hints):
            if kind == "block-major":
                return block_major_layout(specs, geometry.pages_per_block)
            return super().select_block_layout(specs, geometry, hints)

    plans = plan_set(plan_from_specs([layer_spec("k_cache")], PAGE, Policy()))
    told = only_group(plans)["device"]["why"]

    assert "is one contiguous run, as policy 'one-run' version 2 chose: one transfer moves it" in told


def test_several_pages_a_block_are_told():
    group = only_group(plan_set(kv_plan(geometry=BlockCacheGeometry(16, 4))))

    assert group["geometry"]["why"] == (
        "the scheduler hands out blocks of 16 tokens, kernels index pages of 4: 4 pages a block"
    )
    assert group["device"]["why"].endswith("an entry is one kernel page")
    assert group["host"]["why"].endswith("an entry is a whole block, each row's 4 pages one after another")
    # One block: 4 pages * 2 rows * 512 bytes, of which 128 * 2 are payload
    assert (group["device"]["unit_nbytes"], group["device"]["payload_nbytes"]) == (4096, 2048)


def test_one_head_is_no_list_of_all_heads():
    specs = [layer_spec("k_cache", (4, total, 8), shard=HeadShard(total, 0, total)) for total in (1, 2)]

    assert [shard_reason(spec) for spec in specs] == ["the only head", "all 2 heads"]


def test_a_latent_alone_stands_beside_nothing():
    group = only_group(planned(layer_spec("k_cache", (4, 1, 576)), layer_spec("v_cache", (4, 1, 0))))

    assert group["device"]["why"] == (
        "one cache has bytes, standard K/V found by layer, and has one pool to itself; an entry is one block"
    )
    assert "side by side" not in str(group)


def test_a_window_is_told():
    assert only_group(plan_set(kv_plan(window=512)))["window_why"] == (
        "a sequence keeps its last 511 tokens and those in flight; blocks behind them are released"
    )


def test_a_vendors_choice_bears_its_policys_name():
    plan = replace(kv_plan(), policy="vendor", policy_version="3")
    group = only_group(plan_set(plan))

    assert group["device"]["why"].startswith("chosen by policy 'vendor' version 3")
    assert cache(group, "k_cache")["device"]["why"].endswith("(chosen by policy 'vendor' version 3)")


def test_padding_that_no_rule_explains_is_said_to_be_chosen():
    spec = layer_spec("k_cache", rows=1)
    # 128 bytes at 256 of 1024, in the first of two outer indices
    layout = CacheLayout("own", (PoolSpec(2, 1024, alignment=256),), ((CacheSlice(0, 0, 256, 128),),))
    gaps = only_group(plan_set(plan_with([spec], layout)))["device"]["pools"][0]["gaps"]

    assert [(gap["first_outer"], gap["offset"], gap["nbytes"], gap["why"]) for gap in gaps] == [
        (0, 0, 256, "chosen by the policy; the alignment 256 of k_cache alone would need less"),
        (0, 384, 640, "chosen by the policy; entries a multiple of 256 bytes apart would need less"),
        (1, 0, 1024, "no row stands at this outer index"),
    ]


def test_state_groups_are_told_in_slots():
    plans = plan_set(
        *plan_from_states([StateCacheRequest(name="conv", shape=(3,), dtype="uint8", layers=(1, 4))], POLICY)
    )
    group = only_group(plans, {"state": 2})

    assert (group["unit"], group["num_units"]) == ("slot", 2)
    assert "geometry" not in group
    assert "token_nbytes" not in group["device"]
    # two rows of 3 bytes one after another, filled up to 256
    assert [gap["nbytes"] for gap in group["device"]["pools"][0]["gaps"]] == [250]


@given(plans())
def test_gaps_and_rows_are_exactly_the_bytes_of_each_pool(plan):
    group = only_group(plan_set(plan))

    for tier in ("device", "host"):
        for pool in group[tier]["pools"]:
            rows = sum(row["nbytes"] for row in pool["rows"])
            gaps = sum(gap["nbytes"] * gap["num_outer"] for gap in pool["gaps"])
            assert rows + gaps == pool["entry_nbytes"]
            assert gaps * group[tier]["entries_per_unit"] == pool["padding_nbytes"]
            assert all(gap["why"] for gap in pool["gaps"])
        assert sum(len(pool["rows"]) for pool in group[tier]["pools"]) == sum(spec.num_rows for spec in plan.specs)


@given(plans())
def test_an_explanation_is_json_and_its_text_keeps_to_the_width(plan):
    explanation = explain_plan(plan_set(plan))

    assert json.loads(json.dumps(explanation)) == explanation
    assert max(map(len, explain_text(plan_set(plan), width=80).splitlines())) <= 80


def test_text_tells_equally_spaced_gaps_as_one():
    # rows of one byte, each at a multiple of 16 on the host: 15 bytes behind each but the last of all
    geometry = BlockCacheGeometry(1)
    plans = planned(layer_spec("k", (1, 1, 1), dtype="uint8", rows=1000), geometry=geometry)

    told = explain_text(plans)

    assert "bytes 1 to 16 (15 B), each 16 bytes after the last, to 15,984, 999 times" in " ".join(told.split())
    assert len(told.splitlines()) < 60


def test_gaps_that_are_alike_but_not_evenly_spaced_are_counted():
    gaps = [{"first_outer": 0, "num_outer": 1, "offset": n * n * 100, "nbytes": 5, "why": "so"} for n in range(40)]
    data = explain_plan(planned(layer_spec()))
    data["groups"][0]["device"]["pools"][0]["gaps"] = gaps

    told = " ".join(render(data, 100).split())

    # 40 gaps, two a run: 8 runs are told, and 24 gaps of 5 bytes are left
    assert "24 more gaps like these, 120 B" in told
    assert told.count(": so") == 8


@pytest.mark.parametrize("wrong", [None, 3, {}])
@pytest.mark.parametrize("explain", [explain_plan, explain_text])
def test_what_is_no_plan_set_is_refused(explain, wrong):
    with pytest.raises(TypeError, match="plans must be a CachePlanSet, not "):
        explain(wrong)


def test_text_tells_equally_spaced_rows_as_one():
    specs = layer_spec("k_cache", rows=3), layer_spec("v_cache", rows=3)
    text = explain_text(planned(*specs), {"full": 1000}, width=120)

    assert "rows      k_cache layers 0-2: outer 0 to 2, bytes 0 to 128\n" in text
    assert "rows      v_cache layers 0-2: outer 0, bytes 128 to 256, each 256 bytes after the last, to 768\n" in text
    # 3 rows * 512 bytes a block, half of it padding
    assert "1.5 KiB (1,536 B) a block, 384 B a token, of it 768 B padding (50.00%); 1,000 blocks take 1.46 MiB" in text


@pytest.mark.parametrize("layers", [(3, 7), (0, 1, 5)])
def test_text_names_the_layers(layers):
    spec = layer_spec("k_cache", row_ids=layers)

    assert f"layers {'3, 7' if layers == (3, 7) else '0-1, 5'}" in explain_text(planned(spec))
