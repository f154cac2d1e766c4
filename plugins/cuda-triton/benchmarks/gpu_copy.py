"""Block copies: the fused launch, a launch a pool, and torch's gather and scatter, against a contiguous copy."""

from __future__ import annotations

import sys

import torch
import triton
import triton.language as tl
from cachecore_torch_default.bench import SCENARIOS
from cachecore_torch_default.block_copy import GatherScatterCopy
from gpu_common import DEVICE, RESULTS, in_turn, open_scenario, pages_of, pairs_of, submit_seconds

from cachecore import CacheEngine

__all__ = ["bench_copy"]


@triton.jit
def bytewise(pool, ids, num_pairs, outer_stride, block_nbytes: tl.constexpr, tile_nbytes: tl.constexpr):
    """One launch a pool, a byte a lane: what engines do today."""
    tile = tl.program_id(0).to(tl.int64)
    outer = tl.program_id(1).to(tl.int64)
    pair = tl.program_id(2)
    src = tl.load(ids + pair)
    dst = tl.load(ids + num_pairs + pair)
    lane = tile * tile_nbytes + tl.arange(0, tile_nbytes)
    mask = lane < block_nbytes
    base = pool + outer * outer_stride
    tl.store(base + dst * block_nbytes + lane, tl.load(base + src * block_nbytes + lane, mask=mask), mask=mask)


def dropped(nbytes: int, contiguous: float, limit: float) -> bool:
    """Whether torch's own copy is not at its best: it falls to 2.5 or 2.7 TB/s for some sizes, from 20 MB on."""
    return nbytes > 16 << 20 and contiguous < 0.7 * limit


def bench_copy(name: str, counts: list[int], limit: float, compact: bool, layout: str) -> None:
    scenario = SCENARIOS[name]
    num_blocks = 2 * max(counts) if compact else max(2 * max(counts), min(4096, (4 << 30) // scenario.block_nbytes))
    engine = open_scenario(name, num_blocks, 0, layout)
    allocation = engine.allocation()
    for pool in allocation.pools:
        pool.random_(0, 255)
    check_copy(engine, scenario, num_blocks)
    fallback = GatherScatterCopy(make_context(engine))
    for count in counts:
        moved = 2 * count * scenario.block_nbytes
        repeats = max(2, min(16, int((2 << 30) // moved) or 2))
        sets = [pairs_of(count, num_blocks, scenario.neighbours, seed) for seed in range(repeats)]
        ids = [torch.tensor([list(p.src), list(p.dst)], dtype=torch.int64, device=DEVICE) for p in sets]
        ways = {"fused": lambda at, ids=ids: engine.copy_blocks_on_device(ids[at])}
        ways["launch a pool, bytewise"] = lambda at, ids=ids: bytewise_pools(allocation, ids[at], pages_of(engine))
        ways["index_select + index_copy_"] = lambda at, ids=ids: fallback.on_device(ids[at])
        flat = torch.empty(2 * repeats, moved // 2, dtype=torch.uint8, device=DEVICE) if moved < 3 << 30 else None
        plain = {} if flat is None else {"contiguous": lambda at, flat=flat: flat[2 * at].copy_(flat[2 * at + 1])}
        seconds = in_turn(ways | plain, repeats)
        contiguous = moved / seconds["contiguous"] / 1e9 if plain else 0
        del flat, plain
        submit = submit_seconds(lambda ids=ids: engine.copy_blocks_on_device(ids[0]))
        submit_host = submit_seconds(lambda sets=sets: engine.copy_blocks(sets[0]))
        for way in ways:
            rate = moved / seconds[way] / 1e9
            bound = limit if dropped(moved // 2, contiguous, limit) else contiguous
            RESULTS.append(
                {
                    "what": "copy",
                    "scenario": name,
                    "layout": layout,
                    "num_pairs": count,
                    "path": way,
                    "nbytes": moved // 2,
                    "gb_per_s": rate,
                    "limit_gb_per_s": limit,
                    "contiguous_gb_per_s": contiguous,
                    "bound_gb_per_s": bound,
                    "ratio": rate / bound,
                    "submit_s": submit if way == "fused" else None,
                    "submit_host_ids_s": submit_host if way == "fused" else None,
                }
            )
            print(
                f"copy {layout:8} {name:24} {count:4} {way:36} {rate:7.0f} GB/s  {rate / bound:5.3f} of {bound:5.0f}  "
                f"{submit * 1e6:5.1f}/{submit_host * 1e6:5.1f} us",
                flush=True,
            )
    engine.close()
    torch.cuda.empty_cache()


def make_context(engine: CacheEngine):
    from cachecore import CopyContext
    from cachecore.transfer import block_segments

    plan, allocation = engine.plans.only(), engine.allocation()
    pages = plan.pages_per_unit
    segments = block_segments(plan.layout, allocation.num_entries, plan.layout, allocation.num_entries, pages)
    num = allocation.num_entries // pages_of(engine)
    return CopyContext(engine.backend, allocation, engine.backend, allocation, num, num, segments)


def bytewise_pools(allocation, ids, pages):
    for spec, pool in zip(allocation.layout.pools, allocation.pools, strict=True):
        block = spec.inner * pages
        tile = min(4096, triton.next_power_of_2(block))
        bytewise[(triton.cdiv(block, tile), spec.outer, ids.shape[1])](
            pool,
            ids,
            ids.shape[1],
            allocation.num_entries * spec.inner,
            block,
            tile,
            num_warps=8 if tile >= 2048 else 4,
        )


def check_copy(engine, scenario, num_blocks: int) -> None:
    """Every byte of every pool, for ids from the host and from the device."""
    pages = pages_of(engine)
    pools = engine.allocation().pools
    num = min(64, num_blocks // 2)
    for way in ("host", "device"):
        pairs = pairs_of(num, num_blocks, 1, 99)
        expected = []
        for pool in pools[:1] if sum(p.numel() for p in pools) > 8 << 30 else pools:
            want = pool.clone().view(pool.shape[0], -1, pages * pool.shape[2])
            want[:, list(pairs.dst)] = want[:, list(pairs.src)]
            expected.append(want)
        if way == "host":
            engine.copy_blocks(pairs)
        else:
            padded = torch.tensor([[*pairs.src, -1, 3], [*pairs.dst, 5, -1]], device=DEVICE)
            engine.copy_blocks_on_device(padded)
        for pool, want in zip(pools, expected, strict=False):
            if not torch.equal(pool.view(pool.shape[0], -1, pages * pool.shape[2]), want):
                sys.exit(f"{scenario.name}: {way} ids moved a wrong byte")
