"""The plans that a backend is tried with: odd rows, several pools, unequal rows, empty tensors, wide alignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from cachecore.meaning import Plane
from cachecore.schema import CacheTensorSpec, StateCacheRequest

__all__ = ["BLOCK_CASES", "MOVED_CASES", "STATE_CASES", "BlockCase", "StateCase", "block_case", "random_specs"]

Specs = tuple[CacheTensorSpec, ...]


@dataclass(frozen=True, slots=True)
class BlockCase:
    """A block group to plan: its specs for a page of so many tokens, and the pages of a block.

    ``one_run`` plans with ``LayoutHints(one_run_per_block=True)``.
    """

    name: str
    specs: Callable[[int], Specs]
    pages_per_block: int = 1
    one_run: bool = False


@dataclass(frozen=True, slots=True)
class StateCase:
    """A state group to plan, with ``one_run`` as block cases have it."""

    name: str
    requests: tuple[StateCacheRequest, ...]
    one_run: bool = False


def _layer(name: str, shape: tuple[int, ...], dtype: str, rows: int = 2, **more: Any) -> CacheTensorSpec:
    return CacheTensorSpec(name=name, shape=shape, dtype=dtype, row_ids=tuple(range(rows)), **more)


def _consumer(name: str, shape: tuple[int, ...], dtype: str, rows: int = 2, **more: Any) -> CacheTensorSpec:
    numbers = tuple(range(rows))
    return CacheTensorSpec(name=name, shape=shape, dtype=dtype, row_ids=numbers, consumer_rows=numbers, **more)


def _kv(page: int) -> Specs:
    axes = ("token", "head", "other")
    return tuple(_layer(name, (page, 2, 8), "bfloat16", axes=axes) for name in ("k_cache", "v_cache"))


def _int8_kv(page: int) -> Specs:
    axes = ("token", "head", "other")
    return (
        _layer("k_cache", (page, 2, 16), "uint8", axes=axes, format="int8_asym"),
        _layer("v_cache", (page, 2, 12), "uint8", axes=axes, format="int8_asym"),
        _layer("quant_0", (page, 2, 2), "float16", axes=axes, format="int8_asym_scales"),
        _layer("quant_1", (page, 2, 2), "float16", axes=axes, format="int8_asym_scales"),
    )


def _dense(nbytes: int) -> Callable[[int], Specs]:
    return lambda page: (_consumer(f"row_{nbytes}", (nbytes,), "uint8", 3, per_row_contiguous=True, alignment=1),)


def _index(page: int) -> Specs:
    index = _consumer(
        "index",
        (page, 132),
        "uint8",
        axes=("token", "other"),
        format="dsa_index",
        planes=(Plane("keys", 128), Plane("scales", 4)),
        per_row_contiguous=True,
    )
    return (*_kv(page), index)


def _sparse_mla(page: int) -> Specs:
    axes = ("token", "head", "other")
    return (
        _layer("k_cache", (page, 1, 656), "uint8", 3, axes=axes, format="fp8_ds_mla"),
        _layer("v_cache", (page, 1, 0), "uint8", 3, axes=axes, format="fp8_ds_mla"),
    )


def _mixed(page: int) -> Specs:
    return (
        *_kv(page),
        _consumer("window", (5, 3), "float32", 3),
        _consumer("index", (33,), "uint8", 4, per_row_contiguous=True, alignment=1),
        _consumer("counts", (1,), "int64", 1),
    )


def _aligned(page: int) -> Specs:
    return (
        _consumer("coarse", (584,), "uint8", 2, alignment=512, page_stride_multiple=576),
        _consumer("fine", (7,), "uint8", 3, alignment=1),
        _consumer("words", (3, 5), "float32", 2, alignment=4, page_stride_multiple=12),
    )


def _unequal(page: int) -> Specs:
    return (
        *_kv(page),
        _consumer("window", (5, 3), "float32", 3),
        _consumer("odd", (33,), "uint8", 4, alignment=1),
        _consumer("counts", (1,), "int64", 1),
    )


def _narrow(page: int) -> Specs:
    return (
        _layer("k_cache", (4, 1, 6), "float8_e4m3fn", 3, alignment=1),
        _layer("v_cache", (4, 1, 5), "float8_e5m2", 3, alignment=1),
    )


BLOCK_CASES = (
    BlockCase("kv", _kv),
    BlockCase("kv-2-pages", _kv, 2),
    BlockCase("kv-4-pages", _kv, 4),
    BlockCase("int8-kv-2-pages", _int8_kv, 2),
    BlockCase("rows-132", _dense(132)),
    BlockCase("rows-132-4-pages", _dense(132), 4),
    BlockCase("rows-584", _dense(584)),
    BlockCase("rows-656-2-pages", _dense(656), 2),
    BlockCase("kv-and-index", _index),
    BlockCase("sparse-mla-without-v-2-pages", _sparse_mla, 2),
    BlockCase("many-pools-2-pages", _mixed, 2),
    BlockCase("aligned", _aligned),
    BlockCase("one-byte-floats-4-pages", _narrow, 4),
)
"""Block groups, planned as their policy does unasked."""

MOVED_CASES = (
    *BLOCK_CASES,
    BlockCase("kv-2-pages-one-run", _kv, 2, one_run=True),
    BlockCase("unequal-rows-4-pages-one-run", _unequal, 4, one_run=True),
    BlockCase("without-v-2-pages-one-run", _sparse_mla, 2, one_run=True),
)
"""The same, and block groups of one run a block. Every copy, swap and view is tried with each."""


def block_case(name: str) -> BlockCase:
    """The sample of that name."""
    return next(case for case in BLOCK_CASES if case.name == name)


_UNLIKE = (
    StateCacheRequest(name="window", shape=(9, 3), dtype="uint8", layers=(7, 1), alignment=1),
    StateCacheRequest(name="steps", shape=(1,), dtype="int64"),
    StateCacheRequest(name="carry", shape=(5,), dtype="float16", layers=(3,)),
)

STATE_CASES = (
    StateCase(
        "recurrent",
        (
            StateCacheRequest(name="conv", shape=(6, 4), dtype="bfloat16", layers=(0, 2, 5)),
            StateCacheRequest(name="ssm", shape=(2, 4, 8), dtype="float32", layers=(0, 2, 5)),
        ),
    ),
    StateCase("unlike", _UNLIKE),
    StateCase("unlike-one-run", _UNLIKE, one_run=True),
)
"""State groups: rows scoped to layers, unequal row counts, a state without layers."""

_SIZES = {"uint8": 1, "int8": 1, "float8_e4m3fn": 1, "bfloat16": 2, "float16": 2, "float32": 4, "int64": 8}


def random_specs(seed: int) -> tuple[Specs, int]:
    """One to four specs and one to four pages a block, the same for the same seed."""
    random = Random(seed)
    specs = []
    for number in range(random.randint(1, 4)):
        dtype = random.choice(list(_SIZES))
        dense, rows = random.random() < 0.3, random.randint(1, 5)
        consumer = dense or random.random() < 0.5
        made = _consumer if consumer else _layer
        specs.append(
            made(
                f"cache_{number}",
                tuple(random.randint(0 if not number else 1, 9) for _ in range(random.randint(1, 3))),
                dtype,
                rows,
                alignment=_SIZES[dtype] * random.choice([1, 2, 16, 64]),
                page_stride_multiple=random.choice([1, 3, 576]) * _SIZES[dtype],
                per_row_contiguous=dense,
            )
        )
    return tuple(specs), random.choice([1, 2, 3, 4])
