from __future__ import annotations

import json
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import POLICY, consumer_spec, kv_plan, layer_spec, plan_set, plan_with
from strategies import plans

from cachecore import (
    CacheLookupError,
    CachePlanSet,
    DeviceSpec,
    HeadShard,
    Plane,
    PlanError,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.layout_kinds import contiguous_layout, packed_layout


def test_plans_show_themselves_in_a_line():
    state = StateCacheRequest(name="conv", shape=(3,), dtype="uint8", layers=(1, 4))
    plans = CachePlanSet((kv_plan(), *plan_from_states([state], POLICY)), "null", "bytes")

    # a block: two rows of two pages of 256 bytes; a slot: 6 bytes, filled up to 256
    full = "<BlockCachePlan 'full': 2 caches, packed, 1 KiB a block>"
    slots = "<StateCachePlan 'state': 1 cache, packed-state, 256 B a slot>"
    assert repr(plans) == f"<CachePlanSet for null by bytes: {full}, {slots}>"


def hybrid():
    """Full and sliding K/V, an operator's cache, and states."""
    sliding = kv_plan(group="sliding", window=8, tag="_sliding")
    index = [
        consumer_spec(
            shape=(4, 132),
            axes=("token", "other"),
            format="dsa_index",
            planes=(Plane("keys", 128), Plane("scales", 4)),
            shard=HeadShard(8, 2, 2, 1),
            per_row_contiguous=True,
        )
    ]
    states = plan_from_states([StateCacheRequest(name="ssm", shape=(4,), dtype="float32", layers=(3, 1))], POLICY)
    return plan_set(kv_plan(), sliding, plan_with(index, contiguous_layout(index), group="index"), *states)


def test_a_set_is_read_by_name_and_by_order():
    plans = hybrid()

    assert plans.names == ("full", "sliding", "index", "state")
    assert [plan.name for plan in plans] == list(plans.names)
    assert plans["sliding"].group.window == 8
    assert len(plans) == 4


def test_blocks_and_states_are_told_apart():
    assert [plan.name for plan in hybrid().blocks] == ["full", "sliding", "index"]
    assert [plan.name for plan in hybrid().states] == ["state"]


def test_an_unknown_group_is_a_lookup_error():
    with pytest.raises(CacheLookupError, match=r"group 'draft' does not exist; the groups are full") as caught:
        plan_set(kv_plan())["draft"]

    assert caught.value.group == "draft"


def test_only_is_the_single_group_of_a_dense_model():
    assert plan_set(kv_plan()).only() == kv_plan()
    with pytest.raises(PlanError, match=r"this plan set has groups full, sliding, index, state; name the one"):
        hybrid().only()


def test_a_set_needs_a_group():
    with pytest.raises(PlanError, match=r"a plan set needs at least one group"):
        plan_set()


def test_a_group_is_planned_once():
    with pytest.raises(PlanError, match=r"group names \['full', 'full'\] repeat"):
        plan_set(kv_plan(), kv_plan(tag="_2"))


def test_a_layer_stands_in_one_group_only():
    with pytest.raises(PlanError, match=r"the plan set: layer 0 of cache 'k_cache' stands in two tensors"):
        plan_set(kv_plan(), kv_plan(group="sliding"))


def test_consumer_rows_are_complete_over_the_groups():
    specs = [consumer_spec(row_ids=(0, 2), consumer_rows=(0, 2))]
    rest = [consumer_spec(row_ids=(1,), consumer_rows=(1,))]
    first, second = plan_with(specs, packed_layout(specs)), plan_with(rest, packed_layout(rest), group="index")

    assert len(plan_set(first, second)) == 2
    with pytest.raises(PlanError, match=r"the plan set: consumer row 1 of cache 'index' is missing"):
        plan_set(first)


@pytest.mark.parametrize("groups", [[None], ["full"], [layer_spec()]])
def test_groups_are_plans(groups):
    with pytest.raises(TypeError, match=r"groups of a plan set are plans, not"):
        plan_set(*groups)


def test_the_device_is_kept_by_name():
    assert CachePlanSet([kv_plan()], DeviceSpec("cuda", 1), "triton").device == "cuda:1"
    with pytest.raises(PlanError, match=r"device 'CUDA' is not understood"):
        CachePlanSet([kv_plan()], "CUDA", "triton")


@pytest.mark.parametrize("backend", ["", None, 3])
def test_the_backend_has_a_name(backend):
    with pytest.raises(PlanError, match=r"backend name is .*; expected a non-empty string"):
        CachePlanSet([kv_plan()], "cuda", backend)


def test_json_is_its_own_inverse():
    text = hybrid().dumps()

    assert CachePlanSet.loads(text) == hybrid()
    assert CachePlanSet.loads(text).dumps() == text
    assert CachePlanSet.loads(text.encode()) == hybrid()


@given(plans())
def test_json_of_any_plan_is_exact(plan):
    text = plan_set(plan).dumps()

    read = CachePlanSet.loads(text)

    assert read == plan_set(plan)
    assert read.dumps() == text
    assert read.only().specs == plan.specs


def test_json_states_format_and_version():
    data = json.loads(plan_set(kv_plan()).dumps())

    assert list(data) == ["format", "version", "device", "backend", "groups"]
    assert (data["format"], data["version"], data["device"], data["backend"]) == ("cachecore-plan", 1, "null", "bytes")


@pytest.mark.parametrize(
    "text", ["", "{", "plan", b"\xff\xfe", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, '"\\ud8"', "nul"]
)
def test_text_that_is_no_json_is_refused(text):
    with pytest.raises(PlanError, match=r"this is no plan: not JSON"):
        CachePlanSet.loads(text)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"plan"', "{}", '{"format": "other"}', "NaN", "1e400"])
def test_json_that_is_no_plan_is_refused(text):
    with pytest.raises(PlanError, match=r"this is no plan: expected a JSON object with format 'cachecore-plan'"):
        CachePlanSet.loads(text)


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], True, 1.0])
def test_another_version_is_refused(version):
    data = {**hybrid().to_json(), "version": version}

    with pytest.raises(PlanError, match=r"is not understood; this cachecore reads version 1. Plan again with this"):
        CachePlanSet.from_json(data)


def places(value, path=()):
    """Every path into nested lists and objects."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


JSON = json.loads(hybrid().dumps())
# One path of each kind: within every group the first spec, pool, plane and row stand for the others.
PATHS = [path for path in places(JSON) if path and not any(step in range(1, 100) for step in path[2:-1])]
FIELDS = {tuple(step for step in path if isinstance(step, str)): path for path in PATHS if isinstance(path[-1], str)}
FIELDS = sorted(FIELDS.values(), key=str)


def changed(path, change):
    """A copy of the plan's JSON, with what is at ``path`` given to ``change`` together with its container."""
    data = deepcopy(JSON)
    owner = data
    for key in path[:-1]:
        owner = owner[key]
    change(owner, path[-1])
    return data


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_a_missing_field_is_refused(path):
    data = changed(path, lambda owner, key: owner.pop(key))

    with pytest.raises(PlanError, match=r"this (plan is damaged|is no plan)|plan format version"):
        CachePlanSet.from_json(data)


OBJECTS = sorted({path[:-1] for path in FIELDS}, key=str)


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: ".".join(map(str, path)) or "plan")
def test_an_unknown_field_is_refused(path):
    data = changed((*path, "surprise"), lambda owner, key: owner.__setitem__(key, 1))

    with pytest.raises(PlanError, match=r"this plan is damaged: .*surprise"):
        CachePlanSet.from_json(data)


HOSTILE = [None, True, -1, 0, 10**30, 1.5, 1e308, float("nan"), "", "x", [], [[]], {}, {"a": 1}, [10**18], "9" * 50]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_any_other_value_is_refused_or_makes_a_sound_plan(value):
    for path in PATHS:
        data = changed(path, lambda owner, key: owner.__setitem__(key, value))

        try:
            read = CachePlanSet.from_json(data)
        except PlanError:
            continue  # any other exception fails this test
        assert CachePlanSet.loads(read.dumps()) == read


hostile_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(PATHS), hostile_json), min_size=1, max_size=3))
def test_several_other_values_are_refused_or_make_a_sound_plan(changes):
    data = deepcopy(JSON)
    for path, value in changes:
        owner = data
        try:
            for key in path[:-1]:
                owner = owner[key]
            owner[path[-1]] = value
        except (LookupError, TypeError):
            continue  # an earlier change took this place away

    try:
        read = CachePlanSet.from_json(data)
    except PlanError:
        return
    assert CachePlanSet.loads(read.dumps()) == read


def test_a_layout_of_a_million_billion_rows_is_refused_at_once():
    data = deepcopy(JSON)
    data["groups"][0]["layout"]["rows"][0][0][4] = 10**15

    with pytest.raises(PlanError, match=r"this plan is damaged: layout places 1000000000000000 rows"):
        CachePlanSet.from_json(data)


def test_a_plan_that_is_not_sound_is_refused():
    data = deepcopy(JSON)
    data["groups"][0]["layout"]["pools"][0]["inner"] = 256

    with pytest.raises(PlanError, match=r"this plan is damaged: .*cache 'v_cache' takes bytes 256 to 384") as caught:
        CachePlanSet.from_json(data)
    assert type(caught.value) is PlanError


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.update(groups=3), "groups must be a sequence, not 3"),
        (lambda data: data.update(groups=[None]), "a group is of kind None; expected an object with kind block"),
        (lambda data: data["groups"][0].update(kind=["block"]), r"a group is of kind \['block'\]"),
        (lambda data: data["groups"][0].update(specs=True), "specs must be a sequence, not True"),
        (lambda data: data["groups"][0]["specs"][0].update(axes=1), "axes must be a sequence, not 1"),
        (lambda data: data["groups"][0]["specs"][0].update(row_ids=None), "row_ids must be a sequence, not None"),
        (lambda data: data["groups"][0]["layout"].update(rows=7), "rows must be a sequence, not 7"),
        (lambda data: data["groups"][0]["layout"].update(rows=[7, 7]), "the runs of a cache must be a sequence, not 7"),
    ],
)
def test_damage_is_told_by_the_field(spoil, message):
    data = json.loads(plan_set(kv_plan()).dumps())
    spoil(data)

    with pytest.raises(PlanError, match=f"this plan is damaged: .*{message}"):
        CachePlanSet.from_json(data)
