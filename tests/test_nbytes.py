from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecore import PlanError
from cachecore.nbytes import both_nbytes, exact_nbytes, format_nbytes, parse_nbytes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4_096", 4096),
        ("4,096 B", 4096),
        ("1KiB", 1024),
        ("1 kib", 1024),
        ("1KB", 1000),
        ("20GiB", 20 * 1024**3),
        ("20gb", 20_000_000_000),
        ("1.5 MiB", 1536 * 1024),
        (" 2TiB ", 2 * 1024**4),
        ("0.1KiB", 102),  # 102.4: a fraction of a byte is dropped
        ("0.3GB", 300_000_000),  # exactly, though 0.3 is no binary fraction
    ],
)
def test_parse_reads_units(text, nbytes):
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["20G", "20g", "20Gi", "512m"])
def test_parse_refuses_a_unit_that_may_be_1000_or_1024(text):
    with pytest.raises(PlanError, match=r"has no clear unit; write \d+[GM]iB \(1024\*\*\d bytes\) or \d+[GM]B"):
        parse_nbytes(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "1.GiB", "lots", "1 2"])
def test_parse_refuses_what_is_no_number(text):
    with pytest.raises(PlanError, match="is no number of bytes; expected one such as 20GiB"):
        parse_nbytes(text)


@pytest.mark.parametrize("text", ["3 blocks", "1 x", "5 GBit"])
def test_parse_refuses_unknown_units(text):
    with pytest.raises(PlanError, match=r"has unknown unit '.*'; expected B, KiB"):
        parse_nbytes(text)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1000, "1000 B"),
        (24576, "24 KiB"),
        (1024**2 - 1, "1 MiB"),  # 1023.999 KiB would round to 1024 KiB
        (20 * 1024**3, "20 GiB"),
        (729.875, "729.88 B"),
        (1024**6 * 2048, "2048 EiB"),
    ],
)
def test_format_picks_a_unit(nbytes, text):
    assert format_nbytes(nbytes) == text


@given(st.integers(0, 1 << 62))
def test_exact_text_reads_back_exactly(nbytes):
    assert parse_nbytes(exact_nbytes(nbytes)) == nbytes


def test_exact_prefers_a_unit_and_falls_back_to_digits():
    # 30 layers * 98,304 = 2,949,120 = 2.8125 * 1024**2; 93,424 / 1024 = 91.234375 needs six decimals
    assert [exact_nbytes(2_949_120), exact_nbytes(93_424), exact_nbytes(512)] == ["2.8125 MiB", "93,424 B", "512 B"]


def test_both_tells_exact_bytes_where_the_unit_hides_them():
    assert [both_nbytes(767), both_nbytes(2_949_120), both_nbytes(384.5)] == [
        "767 B",
        "2.81 MiB (2,949,120 B)",
        "384.5 B",
    ]


@pytest.mark.parametrize(
    ("text", "error"), [(None, TypeError), (3, TypeError), (b"3", TypeError), ("9" * 5000, PlanError)]
)
def test_what_is_no_size_is_refused_by_name(text, error):
    with pytest.raises(error, match="number of bytes"):
        parse_nbytes(text)
