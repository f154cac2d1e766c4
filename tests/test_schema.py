from __future__ import annotations

import copy
import json
import pickle

import pytest
from samples import Index, consumer_spec, layer_spec, request

from cachecore import (
    BlockCacheBinding,
    BlockCacheGeometry,
    BlockCacheRequest,
    BlockCacheRequestContext,
    CacheLookupError,
    CacheTensorSpec,
    HeadShard,
    LayerRowMap,
    Plane,
    PlanError,
    StateCacheRequest,
)


@pytest.mark.parametrize(("logical", "kernel", "pages"), [(64, 16, 4), (64, 64, 1), (64, None, 1), (48, 24, 2)])
def test_geometry_counts_pages_in_a_block(logical, kernel, pages):
    assert BlockCacheGeometry(logical, kernel).pages_per_block == pages


def test_geometry_keeps_plain_integers():
    geometry = BlockCacheGeometry(Index(64), Index(16))

    assert geometry == BlockCacheGeometry(64, 16)
    assert type(geometry.logical_block_size) is type(geometry.page_size) is int


@pytest.mark.parametrize(
    ("logical", "kernel", "message"),
    [
        (0, 16, "logical_block_size is 0; expected a positive integer"),
        (-64, 16, "logical_block_size is -64"),
        (64, 0, "kernel_block_size is 0; expected a positive integer"),
        (64, -16, "kernel_block_size is -16"),
        (16, 64, "logical_block_size 16 is no positive multiple of kernel_block_size 64"),
        (64, 48, "logical_block_size 64 is no positive multiple of kernel_block_size 48"),
    ],
)
def test_geometry_that_cannot_be_is_refused(logical, kernel, message):
    with pytest.raises(PlanError, match=message):
        BlockCacheGeometry(logical, kernel)


def test_geometry_error_carries_both_sizes():
    with pytest.raises(PlanError) as caught:
        BlockCacheGeometry(64, 48)

    assert (caught.value.logical_block_size, caught.value.kernel_block_size) == (64, 48)


@pytest.mark.parametrize("wrong", [64.0, "64", True])
def test_geometry_of_a_wrong_type_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="logical_block_size must be an integer"):
        BlockCacheGeometry(wrong)


def test_context_shows_geometries_and_cannot_be_changed():
    context = BlockCacheRequestContext({"full": BlockCacheGeometry(64), "sliding": BlockCacheGeometry(16)})

    assert context.geometry().page_size == 64
    assert context.geometry("sliding").page_size == 16
    with pytest.raises(TypeError):
        context.geometries["full"] = BlockCacheGeometry(1)


def test_context_names_the_groups_there_are():
    with pytest.raises(CacheLookupError, match="group 'index' does not exist; the groups are full") as caught:
        BlockCacheRequestContext({"full": BlockCacheGeometry(64)}).geometry("index")

    assert caught.value.group == "index"


@pytest.mark.parametrize("name", ["layer", "shared_with"])
def test_request_keeps_a_plain_layer(name):
    assert type(getattr(request(**{name: Index(3)}), name)) is int


@pytest.mark.parametrize("name", ["layer", "shared_with"])
def test_request_refuses_a_negative_layer(name):
    with pytest.raises(PlanError, match=f"cache 'index': {name} is -1; expected zero or more"):
        request(**{name: -1})


@pytest.mark.parametrize("name", ["layer", "shared_with"])
def test_request_refuses_a_layer_of_a_wrong_type(name):
    with pytest.raises(TypeError, match=f"cache 'index': {name} must be an integer, not 1.5"):
        request(**{name: 1.5})


@pytest.mark.parametrize("group", ["", None, 3])
def test_request_needs_a_group_name(group):
    with pytest.raises(PlanError, match=r"cache 'index': group is .*; expected a non-empty string"):
        request(group=group)


def test_request_is_hashable_and_equal_by_value():
    # W24
    assert hash(request(shape=[4, 8])) == hash(request(shape=(4, 8)))
    assert request(shape=[4, 8]) == request(shape=(4, 8))
    assert request(layer=1) != request(layer=2)


def test_request_needs_keywords():
    with pytest.raises(TypeError):
        BlockCacheRequest("index", (4, 8), "uint8")


@pytest.mark.parametrize(("row", "error"), [(-1, PlanError), (0.0, TypeError), (True, TypeError)])
def test_binding_refuses_what_is_no_row(row, error):
    with pytest.raises(error, match="cache 'index': consumer_row"):
        BlockCacheBinding("index", row)


def test_layer_rows_keep_their_declared_order():
    rows = LayerRowMap([7, Index(3), 11])

    assert rows.layers == (7, 3, 11)
    assert [rows.row(layer) for layer in (7, 3, 11)] == [0, 1, 2]
    assert rows == LayerRowMap((7, 3, 11))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ((), "no layers given; expected at least one"),
        ((1, -2), "layer id -2 is negative"),
        ((4, 1, 4), "layer 4 is listed twice; each layer has one row"),
    ],
)
def test_layer_rows_that_cannot_be_are_refused(layers, message):
    with pytest.raises(PlanError, match=message):
        LayerRowMap(layers)


def test_layer_without_a_row_is_a_lookup_error():
    with pytest.raises(CacheLookupError, match=r"layer 5 owns no row here; the layers are \(3, 7\)") as caught:
        LayerRowMap((3, 7)).row(5)

    assert caught.value.layer == 5


def test_state_request_reads_layers_as_rows():
    state = StateCacheRequest(name="ssm", shape=(4, 8), dtype="float32", layers=[3, 1])

    assert state.layers == (3, 1)
    with pytest.raises(PlanError, match="layer 3 is listed twice"):
        StateCacheRequest(name="ssm", shape=(4, 8), dtype="float32", layers=[3, 3])


def test_spec_counts_rows_and_bytes():
    spec = layer_spec(shape=(4, 2, 8), rows=3)

    # 4 tokens * 2 heads * 8 dims * 2 bytes
    assert (spec.num_rows, spec.page_nbytes) == (3, 128)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"row_ids": ()}, "cache 'index' has no rows"),
        ({"row_ids": (0, -1)}, "cache 'index': row id -1 is negative"),
        ({"row_ids": (2, 0, 2), "consumer_rows": (0, 1, 2)}, "cache 'index': row id 2 is listed twice"),
        ({"row_ids": (0, 1), "consumer_rows": ()}, "cache 'index': 0 consumer rows for 2 row ids"),
        ({"row_ids": (0, 1), "consumer_rows": (0,)}, "cache 'index': 1 consumer rows for 2 row ids"),
        ({"row_ids": (0, 1), "consumer_rows": (0, -1)}, "cache 'index': consumer row -1 is negative"),
        ({"row_ids": (0, 1), "consumer_rows": (1, 1)}, "cache 'index': consumer row 1 is listed twice"),
    ],
)
def test_spec_with_rows_that_cannot_be_is_refused(rows, message):
    with pytest.raises(PlanError, match=message):
        consumer_spec(**rows)


def test_spec_keeps_plain_rows():
    spec = consumer_spec(row_ids=[Index(4), 9], consumer_rows=[Index(1), 0])

    assert (spec.row_ids, spec.consumer_rows) == ((4, 9), (1, 0))
    assert all(type(row) is int for row in (*spec.row_ids, *spec.consumer_rows))


@pytest.mark.parametrize(
    "spec",
    [
        layer_spec(axes=("token", "head", "other"), shard=HeadShard(8, 2, 2), format="int8_asym", alignment=64),
        layer_spec("v_cache", shape=(4, 1, 0)),
        consumer_spec(
            shape=(64, 132),
            axes=("token", "other"),
            format="dsa_index",
            planes=(Plane("keys", 128), Plane("scales", 4)),
            per_row_contiguous=True,
            page_stride_multiple=576,
            row_ids=(5, 3),
            consumer_rows=(1, 0),
        ),
        layer_spec(tokens_per_entry=4, shape=(16, 8), row_ids=(9,)),
    ],
    ids=["sharded", "zero bytes", "planes", "compressed"],
)
def test_spec_json_is_its_own_inverse_and_hides_no_default(spec):
    data = json.loads(json.dumps(spec.to_json()))

    assert CacheTensorSpec.from_json(data) == spec
    assert set(data) == {
        "name",
        "shape",
        "dtype",
        "alignment",
        "page_stride_multiple",
        "per_row_contiguous",
        "axes",
        "tokens_per_entry",
        "shard",
        "format",
        "planes",
        "row_ids",
        "consumer_rows",
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"row_ids": 3}, r"cache 'index': row ids must be a sequence, not 3"),
        ({"consumer_rows": 3}, r"cache 'index': consumer rows must be a sequence, not 3"),
        ({"axes": "token"}, r"cache 'index': axes must be a sequence, not 'token'"),
        ({"planes": 3}, r"cache 'index': planes must be a sequence, not 3"),
        ({"planes": (3,)}, r"cache 'index': planes must be of type Plane, not 3"),
    ],
)
def test_a_spec_names_the_field_of_a_wrong_type(fields, message):
    with pytest.raises(TypeError, match=message):
        CacheTensorSpec(**{"name": "index", "shape": (4, 8), "dtype": "uint8", "row_ids": (0,), **fields})


def test_a_context_is_copied_and_pickled():
    context = BlockCacheRequestContext({"full": BlockCacheGeometry(64, 16)})

    assert pickle.loads(pickle.dumps(context)) == copy.deepcopy(context) == context


@pytest.mark.parametrize("geometries", [None, "full", {"full": 64}])
def test_a_context_holds_geometries(geometries):
    with pytest.raises(TypeError, match="geometr"):
        BlockCacheRequestContext(geometries)


@pytest.mark.parametrize("group", [None, "", 3])
def test_a_state_request_names_its_group(group):
    with pytest.raises(PlanError, match="cache 's': group is"):
        StateCacheRequest(name="s", shape=(1,), dtype="int8", group=group)


def test_a_page_fits_64_bits():
    with pytest.raises(PlanError, match=r"cache 's': shape \(9223372036854775807, 2\) of int8"):
        StateCacheRequest(name="s", shape=(2**63 - 1, 2), dtype="int8")
