"""What published models must be refused for, and that no figure of theirs is passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from published import CASES, DATA, GIB_20, case, dense, planned

from cachecore import (
    AgreementError,
    AllocationError,
    BlockCacheGeometry,
    CacheCoreError,
    CachePlanSet,
    LayoutError,
    PlanError,
    sizing,
)
from cachecore.agreement import solve_reports
from cachecore.report import rank_report


def pages_of_a_draft(**more: Any) -> CachePlanSet:
    config, (run, *_) = case("llama-3.1-8b")
    return planned(replace(dense(config, run), **more), run)


def llama_layout_with(change: Any) -> None:
    """The layout that a plugin returned, with one row changed."""
    plan = pages_of_a_draft(layers=(0, 1))["full"]
    first, second = plan.layout.slices[0]
    replace(plan.layout, slices=(change(first, second), *plan.layout.slices[1:])).validate(plan.specs)


def reports_of(*plans: CachePlanSet) -> list[Any]:
    return [rank_report(one, memory_nbytes=GIB_20) for one in plans]


REFUSED: dict[str, list[tuple[type[CacheCoreError], Any]]] = {
    "logical_block_size that is not a positive multiple of kernel_block_size": [
        (PlanError, lambda: BlockCacheGeometry(24, 16)),
        (PlanError, lambda: BlockCacheGeometry(0, 16)),
    ],
    "KV heads that a tensor-parallel size neither divides nor replicates": [
        (PlanError, lambda: pages_of_a_draft(tp_size=3)),
        (PlanError, lambda: pages_of_a_draft(tp_size=12)),
    ],
    "a row placed twice, or missing, or overlapping another, in a layout that a plugin returned": [
        (LayoutError, lambda: llama_layout_with(lambda first, second: (first, first))),
        (LayoutError, lambda: llama_layout_with(lambda first, second: (first,))),
        (
            LayoutError,
            lambda: llama_layout_with(lambda first, second: (first, first._replace(offset=first.offset + 256))),
        ),
    ],
    "ranks that report a different number of entries than there are ranks, or that disagree on a layer's spec": [
        (AgreementError, lambda: solve_reports(reports_of(pages_of_a_draft()), 2)),
        (AgreementError, lambda: solve_reports(reports_of(pages_of_a_draft(), pages_of_a_draft(head_dim=64)), 2)),
    ],
    "memory too small for one block: the error states bytes needed, bytes there, and the longest sequence that fits": [
        (AllocationError, lambda: sizing.fit(pages_of_a_draft(), memory_nbytes=2097151)),
    ],
}


@pytest.mark.parametrize("sentence", DATA["must_refuse"])
def test_what_must_be_refused_is(sentence):
    for kind, call in REFUSED[sentence]:
        with pytest.raises(kind) as caught:
            call()
    if kind is AllocationError:
        error = caught.value
        assert (error.needed_nbytes, error.free_nbytes, error.longest_sequence) == (2097152, 2097151, 0)
        assert all(told in str(error) for told in ("2,097,152 B) needed", "2,097,151 B) are there", "has 0 tokens"))


GIVEN = {"block_size", "kv_dtype", "tp", "draft", "state_dtype", "rank_memory_nbytes", "note"}
"""What the runs start from; everything else is a figure."""

FIGURES = {
    "llama-3.1-8b": {"page_nbytes", "block_nbytes", "fits_20GiB", "request_tokens", "request_blocks"},
    "llama-3.1-70b": {"page_nbytes", "block_nbytes", "fits_20GiB"},
    "llama-3.1-8b, two pipeline stages of 17 and 15 layers, 10 GiB a rank": {
        "stages",
        "rank_block_nbytes",
        "num_blocks",
        "rank_nbytes",
    },
    "gpt-oss-120b": {
        *("page_nbytes", "full_layers", "sliding_layers", "full_block_nbytes", "sliding_block_nbytes"),
        *("request_tokens", "in_flight_tokens", "request_full_blocks", "request_sliding_blocks", "request_nbytes"),
    },
    "deepseek-v3": {"page_nbytes", "block_nbytes", "fits_20GiB"},
    "deepseek-v3.2": {
        *("mla_token_nbytes", "index_token_nbytes", "page_nbytes", "block_nbytes", "fits_20GiB", "num_tensors"),
    },
    "qwen3-next-80b-a3b": {
        *("full_layers", "state_layers", "full_token_layer_nbytes", "conv_nbytes", "ssm_nbytes", "slot_layer_nbytes"),
    },
}
"""The figures that the tests above compare, by case: one that is added to the data needs a test."""


def test_no_figure_is_passed_over():
    found = {one["name"]: {key for run in one["runs"] for key in run} - GIVEN for one in CASES}

    assert found == FIGURES
