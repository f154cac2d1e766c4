"""Paged decode attention on one GPU: every layout, beside gathering and torch's own attention, in one process.

Checked against float64 first. ``python plugins/cuda-triton/benchmarks/attention.py --out attention.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from statistics import median

import torch
from cachecore_cuda_triton.paged_attention import DecodeTiling, paged_decode_attention
from cachecore_torch_default import TorchBackend

from cachecore import BlockCacheGeometry, CacheTensorSpec, DeviceSpec, StandardLayoutPolicy, plan_from_specs
from cachecore.layout_kinds import contiguous_layout, packed_layout, page_major_layout, row_layout

DEVICE = torch.device("cuda", 0)
HEADS, KV_HEADS, DIM, PAGE, PAGES = 32, 8, 128, 16, 4
LAYOUTS = {
    "packed": packed_layout,
    "row": row_layout,
    "contiguous": contiguous_layout,
    "page-major": page_major_layout,
}
TOKEN_NBYTES = 2 * KV_HEADS * DIM * 2
"""Keys and values of one token of one layer, in two bytes each."""

LAYERS = 32
"""As many as such a model has: rows of one block then stand as far apart as they do there."""

TIMED_LAYERS = 4
BATCHES = ((1, 1024), (1, 8192), (1, 65536), (16, 1024), (16, 8192), (64, 4096), (256, 1024))

SWEPT = ((1, 8192), (16, 8192), (64, 4096))


def graph_seconds(calls, replays: int = 7) -> float:
    """Median seconds of one call, all of them captured in a graph."""
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()  # the operands are written on another stream
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    samples = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) / 1e3 / len(calls))
    return median(samples[1:])


def rows(kind: str, num_blocks: int, dtype: torch.dtype):
    layers = tuple(range(LAYERS))
    specs = [
        CacheTensorSpec(name=name, shape=(PAGE, KV_HEADS, DIM), dtype=str(dtype).removeprefix("torch."), row_ids=layers)
        for name in ("k_cache", "v_cache")
    ]
    plan = plan_from_specs(specs, BlockCacheGeometry(PAGE * PAGES, PAGE), StandardLayoutPolicy())
    layout, backend = LAYOUTS[kind](specs), TorchBackend()
    allocation = backend.allocate(layout, num_blocks * PAGES, DeviceSpec.parse("cuda:0"))
    found = []
    for layer in layers[:: LAYERS // TIMED_LAYERS]:
        pair = [backend.row_view(allocation, index, spec, layer) for index, spec in enumerate(plan.specs)]
        for view in pair:
            view.normal_()
        found.append(pair)
    return allocation, found


def gathered(query, keys, values, entries, length, scale):
    """What a cache without such a kernel does: gather, then torch's attention."""
    parts = [row.index_select(0, entries).view(query.shape[0], -1, KV_HEADS, DIM)[:, :length] for row in (keys, values)]
    return torch.nn.functional.scaled_dot_product_attention(
        query[:, :, None], parts[0].transpose(1, 2), parts[1].transpose(1, 2), scale=scale, enable_gqa=True
    )[:, :, 0]


def check(dtype: torch.dtype) -> float:
    _, views = rows("packed", 64, dtype)
    keys, values = views[2]
    query = torch.randn(4, HEADS, DIM, device=DEVICE, dtype=dtype)
    table = torch.randperm(64, device=DEVICE).view(4, 16)
    length = 16 * PAGE * PAGES - 37
    out = paged_decode_attention(
        query, keys, values, table, torch.full((4,), length, device=DEVICE), DIM**-0.5, pages_per_block=PAGES
    )
    entries = (table[:, :, None] * PAGES + torch.arange(PAGES, device=DEVICE)).flatten()
    parts = [row.index_select(0, entries).view(4, -1, KV_HEADS, DIM)[:, :length].double() for row in (keys, values)]
    key, value = (part.repeat_interleave(HEADS // KV_HEADS, 2) for part in parts)
    weight = (torch.einsum("shd,sthd->sht", query.double(), key) * DIM**-0.5).softmax(-1)
    expected = torch.einsum("sht,sthd->shd", weight, value)
    error = float((out.double() - expected).norm() / expected.norm())
    if not error < 1e-2:
        sys.exit(f"{dtype}: relative error {error}")
    return error


def copy_limit() -> float:
    """Bytes read and written a second by a contiguous copy of 4 GiB."""
    big = torch.empty(2, 1 << 32, dtype=torch.uint8, device=DEVICE)
    big.random_(0, 255)
    return 2 * (1 << 32) / graph_seconds([lambda: big[1].copy_(big[0])] * 3) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    results = [
        {"what": "error", "dtype": str(dtype), "error": check(dtype)} for dtype in (torch.bfloat16, torch.float16)
    ]
    print(results)
    limit = copy_limit()
    for kind in LAYOUTS:
        for num_seqs, length in BATCHES:
            num_blocks = num_seqs * length // (PAGE * PAGES)
            pool_blocks = max(num_blocks, 2048)
            allocation, views = rows(kind, pool_blocks, torch.bfloat16)
            # Other blocks each time, so that nothing is found in the cache.
            sets = max(1, min(8, pool_blocks // num_blocks))
            tables = torch.randperm(pool_blocks, device=DEVICE)[: sets * num_blocks].view(sets, num_seqs, -1)
            lens = torch.full((num_seqs,), length, device=DEVICE)
            query = torch.randn(num_seqs, HEADS, DIM, device=DEVICE, dtype=torch.bfloat16)
            scale = DIM**-0.5
            ways = {"paged": {}}
            if options.sweep and kind == "packed" and (num_seqs, length) in SWEPT:
                for tile in (32, 64, 128):
                    for warps in (4, 8):
                        for stages in (2, 3, 4):
                            tiling = DecodeTiling(tile, warps, stages)
                            ways[f"tile{tile} warps{warps} stages{stages}"] = {"tiling": tiling}
                for splits in (1, 2, 4, 8, 16, 32, 64):
                    ways[f"splits{splits}"] = {"num_splits": splits}
            moved = num_seqs * length * TOKEN_NBYTES
            for way, how in ways.items():
                calls = [
                    partial(paged_decode_attention, query, k, v, table, lens, scale, pages_per_block=PAGES, **how)
                    for table in tables
                    for k, v in views
                ]
                report(results, kind, num_seqs, length, way, graph_seconds(calls), moved, limit)
            pages = torch.arange(PAGES, device=DEVICE)
            entries = [(table[:, :, None] * PAGES + pages).flatten() for table in tables]
            calls = [partial(gathered, query, k, v, one, length, scale) for one in entries for k, v in views]
            report(results, kind, num_seqs, length, "gather + sdpa", graph_seconds(calls), moved, limit)
            del allocation, views
            torch.cuda.empty_cache()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
    best(results)


def report(results, kind, num_seqs, length, way, seconds, moved, limit) -> None:
    rate = moved / seconds / 1e9
    results.append(
        {"layout": kind, "num_seqs": num_seqs, "length": length, "way": way, "us": seconds * 1e6, "gb_per_s": rate,
         "limit_gb_per_s": limit}
    )  # fmt: skip


def best(results) -> None:
    """A short table last."""
    for kind in LAYOUTS:
        for num_seqs, length in BATCHES:
            found = [
                r for r in results if (r.get("layout"), r.get("num_seqs"), r.get("length")) == (kind, num_seqs, length)
            ]
            by_way = {r["way"]: r for r in found}
            line = f"{kind:10} {num_seqs:4} x {length:6}"
            for way in ("paged", "gather + sdpa"):
                r = by_way[way]
                line += f"  {way} {r['us']:7.1f} us {r['gb_per_s']:5.0f} GB/s {r['gb_per_s'] / r['limit_gb_per_s']:.3f}"
            top = sorted(found, key=lambda r: r["us"])[:3]
            print(line, " best:", ", ".join(f"{r['way']} {r['us']:.1f}" for r in top))


if __name__ == "__main__":
    main()
