from __future__ import annotations

import pytest
from samples import POLICY, consumer_spec, layer_spec

from cachecore import (
    PlanError,
    PluginError,
    StandardLayoutPolicy,
    StateCachePlan,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.layout_kinds import contiguous_state_layout, packed_state_layout
from cachecore.state_plan import state_specs


def state(name="ssm", shape=(4,), dtype="float32", **more):
    return StateCacheRequest(name=name, shape=shape, dtype=dtype, **more)


def test_states_of_layers_have_a_row_each():
    conv, ssm = state_specs([state("conv", layers=(4, 0, 2)), state("ssm")])

    assert (conv.row_ids, ssm.row_ids) == ((4, 0, 2), (0,))
    assert conv.consumer_rows is None


def test_an_anonymous_state_cannot_be_asked_for_twice():
    with pytest.raises(
        PlanError, match=r"state 'ssm' is asked for twice; name the layers of each, or use two"
    ) as caught:
        state_specs([state(layers=(0,)), state()])

    assert caught.value.cache == "ssm"


def test_a_layer_cannot_be_asked_for_twice():
    with pytest.raises(PlanError, match=r"group 'state': layer 1 of cache 'ssm' stands in two tensors"):
        plan_from_states([state(layers=(0, 1)), state(shape=(8,), layers=(1,))], POLICY)


@pytest.mark.parametrize("wrong", [layer_spec(), 3], ids=["spec", "int"])
def test_states_must_be_requests(wrong):
    with pytest.raises(TypeError, match=r"states must be StateCacheRequest"):
        plan_from_states([wrong], POLICY)


def test_every_group_gets_its_plan():
    plans = plan_from_states([state("conv"), state("ring", group="window"), state("ssm")], POLICY)

    assert [(plan.name, [spec.name for spec in plan.specs]) for plan in plans] == [
        ("state", ["conv", "ssm"]),
        ("window", ["ring"]),
    ]


def test_anonymous_states_are_named_by_their_number():
    (plan,) = plan_from_states([((4, 8), "float32"), state("conv"), [[3], "bfloat16"]], POLICY)

    assert [(spec.name, spec.shape, spec.dtype, spec.row_ids) for spec in plan.specs] == [
        ("state_0", (4, 8), "float32", (0,)),
        ("conv", state("conv").shape, state("conv").dtype, (0,)),
        ("state_1", (3,), "bfloat16", (0,)),
    ]
    assert plan.name == "state"


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        ([((4, 8), "float32", 3)], TypeError, r"states must be StateCacheRequest or \(shape, dtype\)"),
        ("ab", TypeError, "states must be a sequence, not 'ab'"),
        ([((4, 8), "fp8")], PlanError, "fp8"),
        ([((4, -8), "float32")], PlanError, "state_0"),
    ],
)
def test_what_is_no_anonymous_state_is_refused(wrong, error, told):
    with pytest.raises(error, match=told):
        plan_from_states(wrong, POLICY)


def test_no_states_make_no_plans():
    assert plan_from_states([], POLICY) == ()


def test_a_slot_is_one_entry():
    (plan,) = plan_from_states([state(shape=(96,), layers=(0, 1))], POLICY)

    # 96 * 4 = 384 bytes, in two layers: 768, a multiple of 256; the host has no more
    assert (plan.slot_nbytes(), plan.slot_nbytes(host=True)) == (768, 768)
    assert (plan.pages_per_unit, plan.num_entries(5), plan.unit, plan.kind) == (1, 5, "slot", "state")
    assert plan.layout.kind == "packed-state"


def test_a_group_needs_a_name():
    with pytest.raises(PlanError, match=r"group is ''; expected a non-empty string"):
        plan_from_states([state(group="")], POLICY)


def test_a_state_has_no_consumer_rows():
    specs = [consumer_spec()]
    layout = packed_state_layout(specs)

    with pytest.raises(PlanError, match=r"state 'index' has consumer rows; states are found by name and layer"):
        StateCachePlan("state", specs, layout, layout, "standard", "1")


def test_a_layout_of_other_states_is_refused():
    specs = [layer_spec("conv"), layer_spec("ssm")]
    layout = contiguous_state_layout(specs[:1])

    with pytest.raises(ValueError, match=r"places 1 specs, but there are 2"):
        StateCachePlan("state", specs, layout, layout, "standard", "1")


@pytest.mark.parametrize("method", ["select_state_layout", "select_state_host_layout"])
def test_a_policy_that_returns_no_layout_is_named(method):
    policy = type("Vendor", (StandardLayoutPolicy,), {method: lambda self, *given: None})()

    with pytest.raises(PluginError, match=rf"policy 'standard': {method}\(\) returned None; expected a CacheLayout"):
        plan_from_states([state()], policy)


@pytest.mark.parametrize("method", ["select_state_layout", "select_state_host_layout"])
@pytest.mark.parametrize("error", [SystemExit(2), ZeroDivisionError("x")])
def test_a_policy_that_raises_is_named(method, error):
    def raising(self, *given):
        raise error

    policy = type("Vendor", (StandardLayoutPolicy,), {"name": "vendor", method: raising})()

    with pytest.raises(PluginError, match=rf"policy 'vendor': {method}\(\) raised {type(error).__name__}: {error}"):
        plan_from_states([state()], policy)


@pytest.mark.parametrize(
    ("requests", "policy", "hints", "message"),
    [
        (3, POLICY, None, "states must be a sequence, not 3"),
        ([state()], None, None, "policy must be a LayoutPolicy, not None"),
        ([state()], StandardLayoutPolicy, None, "policy must be a LayoutPolicy, not <class"),
        ([state()], POLICY, 512, "hints must be LayoutHints, not 512"),
    ],
)
def test_a_plan_of_wrong_parts_is_a_type_error(requests, policy, hints, message):
    with pytest.raises(TypeError, match=message):
        plan_from_states(requests, policy, hints=hints)
