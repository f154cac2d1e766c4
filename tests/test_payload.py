from __future__ import annotations

import pytest
from samples import Index

from cachecore import CacheDesc, CachePayload, HeadShard, Plane, PlanError


def payload(**more):
    return CachePayload(**{"name": "index", "shape": (4, 8), "dtype": "uint8", **more})


@pytest.mark.parametrize(
    ("shape", "dtype", "alignment", "nbytes", "aligned"),
    [
        ((4, 2, 8), "float16", 256, 128, 256),  # 4 * 2 * 8 * 2 = 128
        ((4, 2, 16), "float16", 256, 256, 256),  # already a multiple
        ((3, 3), "float32", 16, 36, 48),  # 3 * 3 * 4 = 36, up to 3 * 16
        ((), "float64", 8, 8, 8),  # a scalar
        ((4, 0, 8), "uint8", 256, 0, 0),  # V of an MLA cache
    ],
)
def test_desc_counts_its_bytes(shape, dtype, alignment, nbytes, aligned):
    desc = CacheDesc(shape, dtype, alignment)

    assert (desc.nbytes, desc.aligned_nbytes) == (nbytes, aligned)


def test_desc_is_hashable_and_normal():
    # W24: lists and tuples, strings and dtypes, ints and index objects give one and the same descriptor.
    desc = CacheDesc([Index(4), 8], "torch.half", Index(256), Index(1))

    assert hash(desc) == hash(CacheDesc((4, 8), "float16"))
    assert desc == CacheDesc((4, 8), "float16")
    assert all(type(extent) is int for extent in (*desc.shape, desc.alignment, desc.page_stride_multiple))


@pytest.mark.parametrize("alignment", [0, -8, 3, 384])
def test_alignment_that_is_no_power_of_two_is_refused(alignment):
    # W20: 0 divided by zero, -8 gave an aligned size of 0.
    with pytest.raises(PlanError, match=f"cache 'index': alignment is {alignment}; expected a positive power of two"):
        payload(alignment=alignment)


@pytest.mark.parametrize(("alignment", "dtype", "itemsize"), [(1, "float16", 2), (2, "float32", 4), (4, "int64", 8)])
def test_alignment_that_does_not_suit_the_dtype_is_refused(alignment, dtype, itemsize):
    with pytest.raises(
        PlanError, match=f"alignment {alignment} does not suit {dtype}: .* multiple of its {itemsize} b"
    ):
        payload(alignment=alignment, dtype=dtype)


def test_desc_error_carries_its_values():
    with pytest.raises(PlanError) as caught:
        CacheDesc((4,), "float32", 2)

    assert (caught.value.alignment, caught.value.dtype) == (2, "float32")


def test_a_negative_dimension_is_refused():
    with pytest.raises(PlanError, match=r"cache 'index': shape \(4, -8\) has a negative dimension; expected zero") as e:
        payload(shape=(4, -8))

    assert e.value.cache == "index"


@pytest.mark.parametrize("shape", [(4.0, 8), ("4", 8), (True, 8), "48", 4, None])
def test_a_shape_of_other_things_than_integers_is_a_type_error(shape):
    with pytest.raises(TypeError, match=r"cache 'index': .*(a dimension must be an integer|shape must be a sequence)"):
        payload(shape=shape)


@pytest.mark.parametrize("multiple", [0, -576])
def test_page_stride_multiple_must_be_positive(multiple):
    with pytest.raises(PlanError, match=f"cache 'index': page_stride_multiple is {multiple}; expected a positive"):
        payload(page_stride_multiple=multiple)


@pytest.mark.parametrize("name", ["", None, 7])
def test_a_payload_without_a_name_is_refused(name):
    with pytest.raises(PlanError, match=r"cache name is .*; expected a non-empty string"):
        payload(name=name)


def test_a_payload_names_the_cache_with_a_bad_dtype():
    with pytest.raises(PlanError, match="cache 'index': dtype 'fp8' names no storage dtype"):
        payload(dtype="fp8")


@pytest.mark.parametrize("wrong", [1, None, "yes"])
def test_contiguity_is_a_bool(wrong):
    with pytest.raises(TypeError, match="cache 'index': per_row_contiguous must be a bool"):
        payload(per_row_contiguous=wrong)


@pytest.mark.parametrize("wrong", ["", None, 3])
def test_format_is_a_name(wrong):
    with pytest.raises(PlanError, match=r"cache 'index': format is .*; expected a non-empty string"):
        payload(format=wrong)


def test_shard_is_a_head_shard():
    with pytest.raises(TypeError, match="cache 'index': shard must be a HeadShard, not None"):
        payload(shard=None)


@pytest.mark.parametrize("wrong", [0, -4])
def test_tokens_per_entry_must_be_positive(wrong):
    with pytest.raises(PlanError, match=f"cache 'index': tokens_per_entry is {wrong}; expected a positive"):
        payload(tokens_per_entry=wrong)


def test_planes_share_out_every_byte():
    # 64 tokens * (128 keys + 4 scale bytes) = 64 * 132 = 8448
    page = payload(
        shape=(64, 132), axes=("token", "other"), format="dsa_index", planes=(Plane("keys", 128), Plane("scales", 4))
    )

    assert page.desc.nbytes == 8448


def test_planes_that_leave_bytes_over_are_refused():
    # 64 * (128 + 2) = 8320 of 8448
    with pytest.raises(
        PlanError, match=r"cache 'index': the planes hold 8320 bytes for 64 tokens, but .* is 8448 bytes"
    ):
        payload(shape=(64, 132), axes=("token", "other"), planes=(Plane("keys", 128), Plane("scales", 2)))


def test_planes_need_a_token_axis():
    with pytest.raises(PlanError, match="cache 'index': planes need a token axis"):
        payload(planes=(Plane("keys", 8),))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (4, 16)},
        {"dtype": "int8"},
        {"alignment": 128},
        {"page_stride_multiple": 576},
        {"per_row_contiguous": True},
        {"axes": ("token", "other")},
        {"tokens_per_entry": 4},
        {"shard": HeadShard(8, 0, 8)},
        {"format": "dsa_index"},
        {"axes": ("token", "other"), "planes": (Plane("keys", 8),)},
    ],
    ids="+".join,
)
def test_contract_differs_when_any_meaning_differs(change):
    assert payload(**change).contract() != payload().contract()


def test_contract_ignores_the_name():
    assert payload(name="other").contract() == payload().contract()


def test_payload_is_rebuilt_from_its_fields():
    page = payload(axes=("token", "other"), planes=(Plane("keys", 8),), shard=HeadShard(8, 2, 1))

    assert CachePayload(**page.payload()) == page
