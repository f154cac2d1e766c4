from __future__ import annotations

import subprocess
import sys

import pytest

from cachecore import PlanError
from cachecore.dtypes import ITEMSIZE, dtype_name, itemsize


class TorchLike:
    """What ``str(torch.bfloat16)`` looks like, without torch."""

    def __str__(self):
        return "torch.bfloat16"


float16 = type("float16", (), {})  # numpy's scalar types are classes


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bfloat16", "bfloat16"),
        ("torch.float16", "float16"),
        ("half", "float16"),
        ("torch.float", "float32"),
        ("double", "float64"),
        (TorchLike(), "bfloat16"),
        (float16, "float16"),
        ("float8_e4m3fn", "float8_e4m3fn"),
        ("float4_e2m1fn_x2", "float4_e2m1fn_x2"),
    ],
)
def test_dtype_name_reads_every_spelling(dtype, name):
    assert dtype_name(dtype) == name


@pytest.mark.parametrize(
    ("dtype", "nbytes"), [("bool", 1), ("float8_e5m2", 1), ("bfloat16", 2), ("float32", 4), ("int64", 8)]
)
def test_itemsize_is_bytes_an_element(dtype, nbytes):
    assert itemsize(dtype) == nbytes


@pytest.mark.parametrize("vague", ["fp8", "float8", "torch.float8"])
def test_vague_fp8_lists_the_choices(vague):
    with pytest.raises(PlanError, match="choose one of float8_e4m3fn, float8_e5m2") as caught:
        dtype_name(vague)

    assert caught.value.choices == ("float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize(("vague", "choice"), [("int4", "uint8"), ("uint4", "uint8"), ("fp4", "float4_e2m1fn_x2")])
def test_sub_byte_dtype_names_its_storage(vague, choice):
    with pytest.raises(PlanError, match=f"choose one of {choice} and say what the bytes mean in format="):
        dtype_name(vague)


@pytest.mark.parametrize(
    ("short", "meant"),
    [
        ("bf16", "bfloat16"),
        ("fp16", "float16"),
        ("fp32", "float32"),
        ("torch.bf16", "bfloat16"),
        ("bfloat", "bfloat16"),
    ],
)
def test_a_short_spelling_is_told_the_whole_one(short, meant):
    with pytest.raises(PlanError, match=rf"unknown storage dtype .* \(did you mean {meant}\?\); expected one of"):
        dtype_name(short)


@pytest.mark.parametrize("unknown", ["float17", "", "torch", "complex64"])
def test_unknown_dtype_is_refused_with_the_known(unknown):
    with pytest.raises(PlanError, match=r"unknown storage dtype .*; expected one of bfloat16, bool") as caught:
        dtype_name(unknown)

    assert caught.value.dtype == unknown
    assert set(caught.value.choices) == set(ITEMSIZE)


@pytest.mark.parametrize("wrong", [None, 16, 2.0, b"float16", object()])
def test_dtype_of_a_wrong_type_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="dtype must be a dtype or its name"):
        dtype_name(wrong)


def test_table_cannot_be_changed():
    with pytest.raises(TypeError):
        ITEMSIZE["float17"] = 3


def test_torch_is_never_imported():
    code = "import sys; from cachecore.dtypes import *; dtype_name('torch.float16'); print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
