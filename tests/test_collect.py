from __future__ import annotations

import pytest
from samples import Operator, request

from cachecore import (
    BlockCacheBinding,
    BlockCacheConsumer,
    BlockCacheGeometry,
    BlockCacheRequestContext,
    PlanError,
    collect,
)

CONTEXT = BlockCacheRequestContext({"full": BlockCacheGeometry(4), "sliding": BlockCacheGeometry(8)})


class Plain:
    """A module without caches."""


def bound(*operators):
    return [operator.block_cache_bindings for operator in operators]


def test_every_operator_gets_the_next_row_of_its_name():
    first, second = Operator(request(), request("values")), Operator(request())

    collect([first, Plain(), second], CONTEXT).bind()

    assert bound(first, second) == [
        (BlockCacheBinding("index", 0), BlockCacheBinding("values", 0)),
        (BlockCacheBinding("index", 1),),
    ]


def test_equal_contracts_share_a_tensor_and_rows_count_by_name():
    narrow, wide = {"shape": (4, 8)}, {"shape": (4, 16)}
    operators = [Operator(request(**shape)) for shape in (narrow, wide, narrow)]

    (first, second) = collect(operators, CONTEXT).specs["full"]

    assert (first.shape, first.consumer_rows) == ((4, 8), (0, 2))
    assert (second.shape, second.consumer_rows) == ((4, 16), (1,))


def test_rows_carry_the_layers():
    operators = [Operator(request(layer=layer)) for layer in (7, 3)]

    (spec,) = collect(operators, CONTEXT).specs["full"]

    assert (spec.row_ids, spec.consumer_rows) == ((7, 3), (0, 1))


def test_groups_are_kept_apart_and_rows_count_over_all():
    full, sliding = Operator(request()), Operator(request(group="sliding"))

    collected = collect([full, sliding], CONTEXT)
    collected.bind()

    assert {group: [spec.consumer_rows for spec in specs] for group, specs in collected.specs.items()} == {
        "full": [(0,)],
        "sliding": [(1,)],
    }
    assert sliding.block_cache_bindings == (BlockCacheBinding("index", 1, "sliding"),)


def test_the_context_is_handed_to_the_operator():
    class Asking(BlockCacheConsumer):
        def get_block_cache_requests(self, context):
            return [request(shape=(context.geometry("sliding").page_size, 8), group="sliding")]

    (spec,) = collect([Asking()], CONTEXT).specs["sliding"]

    assert spec.shape == (8, 8)


def test_a_module_met_twice_is_one_consumer():
    # W23
    operator = Operator(request())

    collected = collect([operator, Plain(), operator], CONTEXT)

    assert collected.specs["full"][0].num_rows == 1
    assert len(collected.bindings) == 1


def test_both_methods_make_a_consumer_without_inheritance():
    class Duck:
        def get_block_cache_requests(self, context):
            return [request()]

        def bind_block_caches(self, bindings):
            self.mine = bindings

    duck = Duck()
    collect([duck], CONTEXT).bind()

    assert duck.mine == (BlockCacheBinding("index", 0),)


def test_a_request_for_nothing_is_fine():
    operator = Operator()

    collected = collect([operator], CONTEXT)

    assert (collected.specs, collected.bindings) == ({}, ())


def test_collecting_twice_gives_the_same_rows():
    operators = [Operator(request()), Operator(request("values"), request())]

    collect(operators, CONTEXT).bind()
    first = bound(*operators)
    collect(operators, CONTEXT).bind()

    assert bound(*operators) == first


@pytest.mark.parametrize(
    ("has", "lacks"),
    [
        ("get_block_cache_requests", "bind_block_caches"),
        ("bind_block_caches", "get_block_cache_requests"),
    ],
)
def test_one_method_without_the_other_is_a_type_error(has, lacks):
    module = type("Attention", (), {has: lambda self, given: ()})()

    with pytest.raises(
        TypeError, match=rf"Attention has {has}\(\) but no {lacks}\(\); a block-cache operator needs both"
    ):
        collect([module], CONTEXT)


@pytest.mark.parametrize(
    "misspelt",
    [
        "get_block_cache_request",
        "get_blocks_cache_requests",
        "bind_block_cache",
        "bind_block_cachs",
        "bind_blok_caches",
    ],
)
def test_a_misspelt_method_is_a_type_error(misspelt):
    # W54: a typo dropped a cache silently.
    module = type("Attention", (), {misspelt: lambda self, given: ()})()

    with pytest.raises(TypeError, match=rf"Attention.{misspelt}\(\) looks like .* misspelt"):
        collect([module], CONTEXT)


@pytest.mark.parametrize("name", ["reset_cache", "block_cache", "cache_requests", "_bind_block_cache"])
def test_another_method_about_caches_is_no_misspelling(name):
    module = type("Attention", (), {name: lambda self, given: ()})()

    assert collect([module], CONTEXT).specs == {}


@pytest.mark.parametrize("returned", [None, "index", 3], ids=repr)
def test_requests_must_be_a_sequence(returned):
    operator = Operator()
    operator.requests = returned

    with pytest.raises(TypeError, match=r"Operator.get_block_cache_requests\(\) must return a sequence of requests"):
        collect([operator], CONTEXT)


def test_one_request_must_stand_in_a_sequence():
    operator = Operator()
    operator.requests = request()

    with pytest.raises(TypeError, match=r"must return a sequence of requests, not BlockCacheRequest"):
        collect([operator], CONTEXT)


def test_every_item_must_be_a_request():
    with pytest.raises(
        TypeError, match=r"Operator.get_block_cache_requests\(\) returned \('index', 4\), which is no Block"
    ):
        collect([Operator(request(), ("index", 4))], CONTEXT)


def test_one_operator_asks_for_a_name_once():
    with pytest.raises(PlanError, match=r"Operator asks for cache 'index' twice; one operator has one row") as caught:
        collect([Operator(request(), request(shape=(4, 16)))], CONTEXT)

    assert caught.value.cache == "index"


@pytest.mark.parametrize("layers", [(3, 3), (None, 0)], ids=["two layers", "a layer and a consumer"])
def test_two_operators_cannot_claim_one_row(layers):
    operators = [Operator(request(layer=layer)) for layer in layers]

    with pytest.raises(
        PlanError, match=rf"cache 'index': two operators claim layer or consumer id {layers[1]}; give"
    ) as e:
        collect(operators, CONTEXT)

    assert (e.value.cache, e.value.layer) == ("index", layers[1])


def test_shared_with_uses_another_layers_row():
    own, sharing, later = (
        Operator(request(layer=0)),
        Operator(request(layer=1, shared_with=2)),
        Operator(request(layer=2)),
    )

    collected = collect([own, sharing, later], CONTEXT)
    collected.bind()

    assert collected.specs["full"][0].row_ids == (0, 2)
    assert bound(own, sharing, later) == [(BlockCacheBinding("index", row),) for row in (0, 1, 1)]


def test_shared_with_nobody_is_refused():
    with pytest.raises(
        PlanError, match=r"cache 'index': layer 1 shares the row of 5, but no operator with that layer"
    ) as e:
        collect([Operator(request(layer=0)), Operator(request(layer=1, shared_with=5))], CONTEXT)

    assert e.value.cache == "index"


def test_a_shared_row_cannot_be_shared_on():
    operators = [
        Operator(request(layer=0)),
        Operator(request(layer=1, shared_with=0)),
        Operator(request(layer=2, shared_with=1)),
    ]

    with pytest.raises(PlanError, match=r"layer 2 shares the row of 1, but no operator with that layer owns one"):
        collect(operators, CONTEXT)


@pytest.mark.parametrize("other", [{"shape": (4, 16)}, {"group": "sliding"}, {"dtype": "int8"}], ids=str)
def test_shared_with_another_contract_is_refused(other):
    operators = [Operator(request(layer=0)), Operator(request(layer=1, shared_with=0, **other))]

    with pytest.raises(PlanError, match=r"cache 'index': layer 1 asks for .*, but layer 0, whose row it shares, asked"):
        collect(operators, CONTEXT)
