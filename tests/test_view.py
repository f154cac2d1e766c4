from __future__ import annotations

import pytest
from samples import Index, consumer_spec, layer_spec

from cachecore import BlockIndexError, CacheLookupError, EngineStateError, NamedCacheView
from cachecore.view import SpecViews


def views(*specs, tensors=True):
    """Strings stand for tensors: a view only hands out what it was given."""
    return NamedCacheView(
        [
            SpecViews(
                spec,
                f"{spec.name}{number}" if tensors else None,
                tuple(f"{spec.name}{number}[{row}]" for row in range(spec.num_rows)),
            )
            for number, spec in enumerate(specs)
        ]
    )


KV_AND_INDEX = views(
    layer_spec("k_cache", row_ids=(7, 3)),
    consumer_spec("index", row_ids=(7, 3), consumer_rows=(0, 2)),
    consumer_spec("index", shape=(4, 16), row_ids=(5,), consumer_rows=(1,)),
)


@pytest.mark.parametrize(("row", "expected"), [(0, "index1[0]"), (2, "index1[1]"), (1, "index2[0]")])
def test_row_finds_the_tensor_that_holds_it(row, expected):
    assert KV_AND_INDEX.row("index", row) == expected


@pytest.mark.parametrize(
    ("name", "layer", "expected"), [("k_cache", 3, "k_cache0[1]"), ("index", 3, "index1[1]"), ("index", 5, "index2[0]")]
)
def test_layer_finds_the_row_of_a_global_layer(name, layer, expected):
    assert KV_AND_INDEX.layer(name, layer) == expected


@pytest.mark.parametrize("method", ["row", "layer"])
def test_keys_are_read_through_the_index_protocol(method):
    # W25: row() normalised its key, layer() did not.
    assert getattr(views(consumer_spec()), method)("index", Index(1)) == "index0[1]"


@pytest.mark.parametrize("method", ["row", "layer"])
@pytest.mark.parametrize("wrong", ["0", None, 0.5, [0]])
def test_a_key_of_a_wrong_type_is_a_type_error(method, wrong):
    with pytest.raises(TypeError, match=r"(consumer row|layer) must be an integer"):
        getattr(KV_AND_INDEX, method)("index", wrong)


@pytest.mark.parametrize("row", [-1, 3])
def test_a_row_out_of_range_is_an_index_error(row):
    message = f"consumer row {row} of cache 'index' does not exist; it has 3, from 0 to 2"

    with pytest.raises(BlockIndexError, match=message) as caught:
        KV_AND_INDEX.row("index", row)
    assert (caught.value.cache, caught.value.row) == ("index", row)


def test_a_layer_without_a_row_is_an_index_error():
    with pytest.raises(BlockIndexError, match=r"layer 4 of cache 'k_cache' does not exist; it has 2, from 3 to 7"):
        KV_AND_INDEX.layer("k_cache", 4)


@pytest.mark.parametrize("method", ["row", "layer"])
def test_an_unknown_name_is_a_lookup_error(method):
    with pytest.raises(
        CacheLookupError, match=r"cache 'value' does not exist; the caches are k_cache, index"
    ) as caught:
        getattr(KV_AND_INDEX, method)("value", 0)

    assert caught.value.cache == "value"


def test_a_name_without_consumer_rows_says_how_to_find_it():
    with pytest.raises(
        CacheLookupError, match=r"cache 'k_cache' has no consumer rows; standard K/V is found with layer"
    ):
        KV_AND_INDEX.row("k_cache", 0)


def test_a_name_is_its_whole_tensor():
    assert KV_AND_INDEX["k_cache"] == "k_cache0"


def test_a_name_with_several_tensors_says_how_to_choose():
    with pytest.raises(EngineStateError, match=r"cache 'index' has 2 tensors; use row\(\) or layer\(\)") as caught:
        KV_AND_INDEX["index"]

    assert caught.value.cache == "index"


def test_a_name_without_a_whole_tensor_says_so():
    with pytest.raises(EngineStateError, match=r"cache 'index' has no whole tensor: its rows are not equally spaced"):
        views(consumer_spec(), tensors=False)["index"]


def test_a_view_is_a_mapping_over_distinct_names():
    assert list(KV_AND_INDEX) == ["k_cache", "index"]
    assert len(KV_AND_INDEX) == 2
    assert "index" in KV_AND_INDEX
    assert "value" not in KV_AND_INDEX
    with pytest.raises(KeyError):
        KV_AND_INDEX["value"]
    assert KV_AND_INDEX.get("value") is None


def test_a_view_needs_a_row_for_each_row_of_its_spec():
    with pytest.raises(ValueError, match=r"argument"):
        NamedCacheView([SpecViews(layer_spec(rows=2), "k", ("k[0]",))])


@pytest.mark.parametrize(
    "access",
    [
        lambda view: view.row("index", 0),
        lambda view: view.layer("k_cache", 7),
        lambda view: view["k_cache"],
        lambda view: view.row("value", 0),
    ],
    ids=["row", "layer", "name", "unknown"],
)
def test_a_closed_view_gives_its_reason(access):
    view = views(layer_spec("k_cache", row_ids=(7, 3)), consumer_spec("index"))

    view.close("this engine is closed")

    with pytest.raises(EngineStateError, match=r"^this engine is closed$"):
        access(view)


def test_a_closed_view_holds_no_tensor():
    class Tensor:
        pass

    import weakref

    tensors = [Tensor() for _ in range(3)]
    alive = [weakref.ref(tensor) for tensor in tensors]
    view = NamedCacheView([SpecViews(layer_spec(rows=2), tensors[0], tuple(tensors[1:]))])
    del tensors

    view.close("closed")

    assert [reference() for reference in alive] == [None] * 3
