from __future__ import annotations

import pytest
from samples import Index

from cachecore import HeadShard, Plane, PlanError
from cachecore.meaning import REPLICATED, check_axes, not_negative, positive, several, whole


def test_whole_reads_the_index_protocol():
    assert (whole(3, "x"), whole(Index(3), "x"), whole(-3, "x")) == (3, 3, -3)
    assert type(whole(Index(3), "x")) is int


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, [1]])
def test_whole_refuses_other_types(wrong):
    with pytest.raises(TypeError, match=r"num_layers must be an integer, not "):
        whole(wrong, "num_layers")


@pytest.mark.parametrize("dtype", ["bool", "torch.bool"])
def test_whole_refuses_an_element_of_a_mask(dtype):
    element = Index(1)
    element.dtype = dtype

    with pytest.raises(TypeError, match=r"a live block must be an integer, not "):
        whole(element, "a live block")


@pytest.mark.parametrize("number", [0, -1])
def test_positive_names_value_and_expectation(number):
    with pytest.raises(PlanError, match=f"num_layers is {number}; expected a positive integer") as caught:
        positive(number, "num_layers")

    assert caught.value.value == number


@pytest.mark.parametrize(
    "shard", [HeadShard(8, 0, 8), HeadShard(8, 6, 2), HeadShard(2, 1, 1, 3), HeadShard(0, 0, 0, 1), REPLICATED]
)
def test_shard_of_real_heads_is_accepted(shard):
    assert shard.replicated == (shard.total == 0)


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ((8, 6, 3), "shard of 3 heads from head 6 does not lie within 8 heads"),
        ((8, 8, 1), "does not lie within 8 heads"),
        ((8, 0, 0), "shard of 0 heads"),
        ((-1, 0, 0), "shard total is -1; expected zero or more"),
        ((8, -1, 1), "shard first is -1"),
        ((8, 0, -1), "shard count is -1"),
        ((8, 0, 1, -1), "shard replica is -1"),
        ((0, 1, 0), "names no heads, but first=1, count=0"),
        ((0, 0, 2), "names no heads, but first=0, count=2"),
    ],
)
def test_shard_that_cannot_be_is_refused(shard, message):
    with pytest.raises(PlanError, match=message):
        HeadShard(*shard)


def test_shard_of_a_wrong_type_is_a_type_error():
    with pytest.raises(TypeError, match=r"shard count must be an integer, not 1.0"):
        HeadShard(8, 0, 1.0)


def test_shard_keeps_plain_integers():
    assert all(type(value) is int for value in HeadShard(Index(8), Index(2), Index(1), Index(0)).to_json().values())


@pytest.mark.parametrize("shard", [HeadShard(8, 6, 2), HeadShard(2, 1, 1, 3), REPLICATED])
def test_shard_json_is_its_own_inverse(shard):
    assert HeadShard.from_json(shard.to_json()) == shard


def test_plane_is_a_name_and_bytes_a_token():
    assert Plane("keys", 128).to_json() == {"name": "keys", "token_nbytes": 128}


@pytest.mark.parametrize("name", ["", None, 3])
def test_plane_without_a_name_is_refused(name):
    with pytest.raises(PlanError, match=r"plane name is .*; expected a non-empty string"):
        Plane(name, 128)


def test_plane_without_bytes_is_refused():
    with pytest.raises(PlanError, match="plane 'keys' token_nbytes is 0; expected a positive integer"):
        Plane("keys", 0)


def test_axes_default_to_other():
    assert check_axes((), (4, 2), "cache 'k'") == ("other", "other")


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        (("token",), (4, 2), "1 axis labels .* for the 2 dimensions"),
        (("token", "head", "other"), (4, 2), "3 axis labels"),
        (("tokens", "other"), (4, 2), "axis label 'tokens' is unknown; expected one of token, head, other"),
        (("token", "token"), (4, 2), "axis label 'token' appears twice"),
        (("head", "head"), (4, 2), "axis label 'head' appears twice"),
        (("token", "other"), (0, 2), "the token axis .* is zero; only an 'other' axis may be empty"),
        (("other", "head"), (4, 0), "the head axis .* is zero"),
    ],
)
def test_axes_that_do_not_suit_are_refused(axes, shape, message):
    with pytest.raises(PlanError, match=f"cache 'k': .*{message}"):
        check_axes(axes, shape, "cache 'k'")


def test_an_empty_other_axis_and_several_others_are_fine():
    assert check_axes(("token", "other", "other"), (4, 0, 2), "cache 'v'") == ("token", "other", "other")


@pytest.mark.parametrize("wrong", [None, 3, "token", b"x"])
def test_what_is_no_sequence_is_a_type_error(wrong):
    with pytest.raises(TypeError, match=rf"layers must be a sequence, not {wrong!r}"):
        several(wrong, "layers")


def test_several_keeps_the_order_of_any_iterable():
    assert several((number * 2 for number in range(3)), "rows") == (0, 2, 4)


@pytest.mark.parametrize("check", [positive, not_negative])
def test_a_number_fits_64_bits(check):
    assert check(2**63 - 1, "memory") == 2**63 - 1
    with pytest.raises(PlanError, match="memory has 64 bits; expected a number below"):
        check(2**63, "memory")
