"""Slots on the CPU backend: neighbouring slots are one run, every byte as on the core's ``ByteBackend``."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from cachecore_cpu import CpuBackend, memmoves, strided
from cachecore_cpu.plugin import cachecore_register_block_copies
from cachecore_torch_default.testing import tier_contents

from cachecore import (
    ByteBackend,
    CachePlanSet,
    StandardLayoutPolicy,
    StateCacheEngine,
    StateCacheRequest,
    plan_from_states,
)
from cachecore.layout_kinds import contiguous_state_layout
from cachecore.reference import BYTE_COPY

STATES = (
    StateCacheRequest(name="ssm", shape=(4, 64), dtype="float32", layers=(0, 1)),
    StateCacheRequest(name="conv", shape=(256,), dtype="bfloat16", layers=(0, 1)),
)


class ContiguousStates(StandardLayoutPolicy):
    """One dense pool a state."""

    name = "contiguous-states"

    def select_state_layout(self, specs: Any, hints: Any) -> Any:
        """One pool each."""
        return contiguous_state_layout(specs, base_alignment=hints.base_alignment)


def opened(policy: Any, backend: Any, copies: Any) -> Any:
    """Ten slots with the same random bytes for every backend."""
    plans = CachePlanSet(plan_from_states(STATES, policy), "null" if backend.name == "bytes" else "cpu", "test")
    engine: Any = StateCacheEngine(plans, 10, backend=backend, copies=copies, device=plans.device)
    allocation = engine.allocation()
    for pool, _ in enumerate(allocation.layout.pools):
        nbytes = allocation.layout.pool_nbytes(pool, allocation.num_entries)
        backend.write(allocation, pool, 0, random.Random(pool).randbytes(nbytes))
    return engine


@pytest.mark.parametrize("num_threads", [1, 2], ids=["memmove", "strided"])
@pytest.mark.parametrize(
    ("pairs", "num_runs"),
    [
        ([(0, 5), (1, 6), (2, 7), (3, 8)], 1),
        ([(3, 8), (0, 5), (2, 7), (1, 6)], 1),  # in any order
        ([(0, 5), (1, 6), (3, 8), (4, 9)], 2),
        ([(0, 9), (1, 8), (2, 7)], 3),
        ([(0, 5), (0, 6)], 2),  # forks of one slot are no run
    ],
    ids=["one run", "shuffled", "two runs", "no run", "forks"],
)
@pytest.mark.parametrize("policy", [StandardLayoutPolicy(), ContiguousStates()], ids=["packed", "contiguous"])
def test_neighbouring_slots_are_copied_as_one_run(monkeypatch, policy, pairs, num_runs, num_threads):
    calls: list[int] = []
    real_move, real_copy = memmoves.memmove, torch._foreach_copy_

    def move(dst: int, src: int, nbytes: int) -> None:
        calls.append(1)
        real_move(dst, src, nbytes)

    def copy(dst: list[torch.Tensor], src: list[torch.Tensor]) -> None:
        calls.append(len(dst))
        real_copy(dst, src)

    monkeypatch.setattr(memmoves, "memmove", move)
    monkeypatch.setattr(torch, "_foreach_copy_", copy)
    monkeypatch.setattr(memmoves, "MEMMOVE_NBYTES", 1)
    monkeypatch.setattr(strided, "_VIEWS_KEPT", 3)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        engine = opened(policy, CpuBackend(policy), tuple(cachecore_register_block_copies()))
        oracle = opened(policy, ByteBackend(policy), [BYTE_COPY])

        engine.copy_slots(pairs)
        oracle.copy_slots(pairs)
    finally:
        torch.set_num_threads(before)

    # packed: one pool; contiguous: one pool a state, of two layers, each a run of its own for memmove
    pools, rows = (1, 1) if policy.name == "standard" else (2, 2)
    assert calls == ([1] * num_runs * pools * rows if num_threads == 1 else [num_runs] * pools)
    assert tier_contents(engine, host=False) == tier_contents(oracle, host=False)
