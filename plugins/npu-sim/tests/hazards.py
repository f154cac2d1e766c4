"""Mistakes of a cache backend that the native device makes visible: ``python hazards.py`` prints what was not seen."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable

import cachecore_npu_sim
import torch

LAYERS, BLOCKS, PAGE = 2, 16, (16, 2, 64)


def pool() -> torch.Tensor:
    return torch.randn(LAYERS, BLOCKS, *PAGE).half().to("npu")


def batch_copy_equals_index_copy() -> bool:
    cache, src, dst = pool(), [3, 9, 9, 4], [5, 1, 2, 13]
    nbytes, base = cache[0, 0].nbytes, cache.data_ptr()
    indexed = cache.clone()
    indexed.index_copy_(1, torch.tensor(dst).to("npu"), cache.index_select(1, torch.tensor(src).to("npu")))

    def addresses(ids: list[int]) -> torch.Tensor:
        return torch.tensor([base + (layer * BLOCKS + block) * nbytes for layer in range(LAYERS) for block in ids])

    sizes = torch.full((LAYERS * len(src),), nbytes)
    torch.ops.cachecore_npu_sim.memcpy_batch(addresses(dst), addresses(src), sizes)
    return torch.equal(indexed.cpu(), cache.cpu())


def swap_on_a_side_stream_is_asynchronous_and_right() -> bool:
    torch.ops.cachecore_npu_sim.set_delay_us(2000)
    cache, host = pool(), torch.empty(LAYERS, BLOCKS, *PAGE, dtype=torch.half, pin_memory=True)
    side = torch.npu.Stream()
    cache.fill_(7.0)
    side.wait_event(torch.npu.current_stream().record_event())
    started = time.perf_counter()
    with torch.npu.stream(side):
        for layer in range(LAYERS):
            host[layer].copy_(cache[layer], non_blocking=True)
        done = side.record_event()
    issued, pending = time.perf_counter() - started, not done.query()
    done.synchronize()
    torch.ops.cachecore_npu_sim.set_delay_us(0)
    return pending and issued < 1 and bool((host == 7).all())


def missing_wait_event_copies_stale_bytes() -> bool:
    cache, side = pool().zero_(), torch.npu.Stream()
    host = torch.empty(BLOCKS, *PAGE, dtype=torch.half, pin_memory=True)
    torch.npu.synchronize()
    torch.ops.cachecore_npu_sim.stall(50_000)
    cache.fill_(3.0)
    with torch.npu.stream(side):  # the mistake: nothing makes `side` wait
        host.copy_(cache[0], non_blocking=True)
    side.synchronize()
    stale = bool((host == 0).all())
    torch.npu.synchronize()
    return stale


def missing_record_stream_gives_memory_away() -> bool:
    torch.ops.cachecore_npu_sim.set_delay_us(20_000)
    side, sink = torch.npu.Stream(), torch.empty(1 << 16, pin_memory=True)

    def reused(*, record: bool) -> bool:
        temporary = torch.full((1 << 16,), 5.0, device="npu")
        torch.npu.synchronize()
        with torch.npu.stream(side):
            sink.copy_(temporary, non_blocking=True)
        if record:
            temporary.record_stream(side)
        address = temporary.data_ptr()
        del temporary
        return torch.empty(1 << 16, device="npu").data_ptr() == address

    without = reused(record=False)
    side.synchronize()
    recorded = reused(record=True)
    side.synchronize()
    torch.ops.cachecore_npu_sim.set_delay_us(0)
    return without and not recorded


def copy_past_the_end_is_refused() -> bool:
    cache = pool()
    numbers = [cache.data_ptr() + cache.nbytes - 16], [cache.data_ptr()], [64]
    try:
        torch.ops.cachecore_npu_sim.memcpy_batch(*map(torch.tensor, numbers))
    except RuntimeError as error:
        return "past the end" in str(error)
    return False


def wrong_direction_of_a_batch_is_refused() -> bool:
    cache = pool()
    numbers = [cache.data_ptr()], [cache.data_ptr() + 64], [64]
    for direction in (0, 1, 2):
        try:
            torch.ops._C_ascend.swap_blocks_batch(*map(torch.tensor, numbers), direction)
        except RuntimeError:
            continue
        return False
    return True


def bad_index_surfaces_at_synchronize() -> bool:
    torch.zeros(4, device="npu").index_copy_(0, torch.tensor([9]).to("npu"), torch.ones(1, device="npu"))
    try:
        torch.npu.synchronize()
    except (RuntimeError, IndexError):
        return True
    return False


def devices_are_apart() -> bool:
    first, second = torch.ones(4, device="npu:0"), torch.ones(4, device="npu:1")
    try:
        first.add_(second)
    except RuntimeError as error:
        return "same device" in str(error) and torch.equal(first.to("npu:1").cpu(), second.cpu())
    return False


def deepcopy_copies_the_bytes() -> bool:
    cache = pool()
    first, second = copy.deepcopy([cache, cache])
    return first is second and first.data_ptr() != cache.data_ptr() and torch.equal(first.cpu(), cache.cpu())


CASES: tuple[Callable[[], bool], ...] = (
    batch_copy_equals_index_copy,
    swap_on_a_side_stream_is_asynchronous_and_right,
    missing_wait_event_copies_stale_bytes,
    missing_record_stream_gives_memory_away,
    copy_past_the_end_is_refused,
    wrong_direction_of_a_batch_is_refused,
    bad_index_surfaces_at_synchronize,
    devices_are_apart,
    deepcopy_copies_the_bytes,
)

if __name__ == "__main__":
    cachecore_npu_sim.install_native()
    torch.set_num_threads(1)
    print(json.dumps([case.__name__ for case in CASES if not case()]))
