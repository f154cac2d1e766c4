from __future__ import annotations

import pytest
from row_oracle import RowOracle
from samples import POLICY, Operator, consumer_spec, kv_plan, layer_spec, open_bytes, plan_set, plan_with, request

from cachecore import (
    BlockCacheGeometry,
    CacheLookupError,
    EngineStateError,
    KvCacheConfig,
    NamedCacheView,
    StateCacheRequest,
    build_block_cache_plan,
    kv_specs,
    plan_from_specs,
    plan_from_states,
)
from cachecore.layout_kinds import contiguous_layout, packed_layout, row_layout


def written(engine, name, layer, value):
    """Fill one row's view with ``value``."""
    view = engine.block_caches.layer(name, layer)
    view.frombytes(bytes([value]) * len(view.tobytes()))


def test_layer_caches_are_tuples_in_layer_order_across_groups():
    full = plan_with(
        [layer_spec("k", row_ids=(3, 1)), layer_spec("v", row_ids=(3, 1))],
        packed_layout([layer_spec("k", row_ids=(3, 1)), layer_spec("v", row_ids=(3, 1))]),
    )
    specs = [layer_spec("k", row_ids=(0, 2)), layer_spec("v", row_ids=(0, 2))]
    sliding = plan_with(specs, row_layout(specs), group="sliding", window=8)
    engine = open_bytes(plan_set(full, sliding), {"full": 2, "sliding": 2})
    for layer in range(4):
        written(engine, "k", layer, 10 + layer)
        written(engine, "v", layer, 20 + layer)

    seen = [tuple(set(tensor.tobytes()) for tensor in layer) for layer in engine.layer_caches]

    assert seen == [({10 + layer}, {20 + layer}) for layer in range(4)]


def test_layer_caches_hold_the_auxiliary_tensors_too():
    config = KvCacheConfig(layers=2, dtype="float16", num_kv_heads=2, head_dim=8, quant_policy="int8")
    plan = plan_from_specs(kv_specs(config, BlockCacheGeometry(4), POLICY), BlockCacheGeometry(4), POLICY)

    engine = open_bytes(plan)

    # K and V (4, 2, 8) bytes, scale and zero (4, 2, 2) halves, of 4 pages
    assert [[len(tensor.tobytes()) for tensor in layer] for layer in engine.layer_caches] == [[256, 256, 128, 128]] * 2


def test_operators_caches_are_not_in_the_layer_tuples():
    index = [consumer_spec()]

    assert open_bytes(plan_with(index, row_layout(index))).layer_caches == ()


def test_caches_are_one_type_whatever_they_hold():
    # W55: consumers probed for a `row` attribute, because the engine returned two types.
    index = [consumer_spec()]

    kinds = {type(open_bytes(plan).block_caches) for plan in (kv_plan(), plan_with(index, row_layout(index)))}

    assert kinds == {NamedCacheView}


def test_an_operator_finds_its_row_by_its_binding():
    operators = [Operator(request(layer=layer)) for layer in (7, 3)]
    plans = build_block_cache_plan(
        operators,
        kv=KvCacheConfig(layers=[7, 3], dtype="float16", num_kv_heads=2, head_dim=8),
        geometry=BlockCacheGeometry(4),
        device="null",
        policy=POLICY,
    )
    engine = open_bytes(plans, 2)
    (binding,) = operators[1].block_cache_bindings
    engine.block_caches.row(binding.cache_name, binding.consumer_row).frombytes(b"\5" * 64)

    assert set(engine.block_caches.layer("index", 3).tobytes()) == {5}
    assert set(engine.block_caches.layer("index", 7).tobytes()) == {0}
    assert sorted(engine.block_caches) == ["index", "k_cache", "v_cache"]


def test_views_alias_the_allocation():
    engine = open_bytes(kv_plan())
    written(engine, "v_cache", 1, 9)

    engine.copy_blocks([(0, 1)])
    engine.zero_blocks([0])

    row = engine.block_caches.layer("v_cache", 1).tobytes()
    assert (set(row[:128]), set(row[128:])) == ({0}, {9})


@pytest.mark.parametrize("host_layout", ["packed", "row", "contiguous", "block-major"])
@pytest.mark.parametrize("logical", [4, 8, 16])
def test_swap_between_layouts_of_any_kind_is_the_identity(logical, host_layout):
    # W18: upstream's swap confused blocks and pages, and nothing ran it.
    makers = {
        "packed": packed_layout,
        "row": row_layout,
        "contiguous": contiguous_layout,
        "block-major": lambda specs: None,
    }
    specs = [layer_spec("k_cache"), layer_spec("v_cache", shape=(4, 2, 4))]
    plan = plan_with(specs, packed_layout(specs), makers[host_layout](specs), geometry=BlockCacheGeometry(logical, 4))
    engine = open_bytes(plan, 4, 3)
    oracle = RowOracle(plan, engine.allocation())
    oracle.fill(11)
    before = oracle.read([1, 2, 3])

    engine.swap_out([(1, 0), (2, 2), (3, 1)]).synchronize()
    oracle.fill(12)
    engine.swap_in([(0, 1), (2, 2), (1, 3)]).synchronize()

    assert oracle.read([1, 2, 3]) == before


def test_the_host_allocation_is_reachable_when_there_is_one():
    engine = open_bytes(kv_plan(), 4, 3)

    assert engine.allocation(host=True).num_entries == 3
    assert engine.allocation(host=True).memory_kind == "host"
    assert open_bytes(kv_plan()).allocation(host=True) is None


def hybrid():
    states = plan_from_states([StateCacheRequest(name="ssm", shape=(64,), dtype="float32", layers=(1, 4))], POLICY)
    return plan_set(kv_plan(), *states)


def test_state_groups_are_served_beside_the_blocks():
    engine = open_bytes(hybrid(), {"full": 4, "state": 2})

    assert list(engine.block_caches) == ["k_cache", "v_cache"]
    assert list(engine.states.state_caches) == ["ssm"]
    with pytest.raises(CacheLookupError, match=r"group 'state' does not exist; the groups are full"):
        engine.copy_blocks([(0, 1)], group="state")
    assert engine.copy_blocks([(0, 1)]).done()


def test_an_engine_without_states_says_how_to_get_some():
    with pytest.raises(CacheLookupError, match=r"this plan set has no state groups; plan with states= to get some"):
        _ = open_bytes(kv_plan()).states


def test_close_ends_the_states_too():
    engine = open_bytes(hybrid(), {"full": 4, "state": 2})
    states = engine.states

    engine.close()

    with pytest.raises(EngineStateError, match=r"this engine is closed"):
        states.zero_slots([0])
    with pytest.raises(EngineStateError):
        states.state_caches.layer("ssm", 1)


def test_a_spec_of_zero_bytes_has_its_place_in_the_tuple():
    specs = [
        layer_spec("k_cache", shape=(4, 1, 656), dtype="uint8"),
        layer_spec("v_cache", shape=(4, 1, 0), dtype="uint8"),
    ]
    engine = open_bytes(plan_with(specs, packed_layout(specs)), 3, 2)

    assert [[tensor.shape for tensor in layer] for layer in engine.layer_caches] == [[(3, 4, 1, 656), (3, 4, 1, 0)]] * 2
    engine.swap_out([(0, 1)])
    engine.copy_blocks([(0, 1)])
    # whole entries of 2 * 2,816 bytes (2,624 and padding) on the device; 2 * 2,624 to the host
    assert [copy.block_nbytes for copy in engine.stats().groups[0].copies] == [5632, 5248, 5248]
