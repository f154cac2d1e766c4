"""CPU time to queue copies and swaps, several ways, in one process; bytes are checked first."""

from __future__ import annotations

import random
import sys
import time
from array import array
from functools import partial
from statistics import median

import torch
from cachecore_cuda_triton import kernels
from cachecore_cuda_triton.driver import copy_pieces
from cachecore_cuda_triton.launch import launch_copy, upload_ids
from cachecore_cuda_triton.pinned import pinned_pages
from cachecore_cuda_triton.submission import KernelLauncher, id_ring, make_event, record, wait
from cachecore_cuda_triton.tiles import Run, tile_table

DEVICE = torch.device("cuda", 0)
SCENARIOS = {"80x8192": (80, 8192), "32x65536": (32, 65536), "61x41984": (61, 41984), "32x262144": (32, 262144)}


def submit(call, calls: int = 200) -> float:
    samples = []
    for _ in range(calls // 10):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10):
            call()
        samples.append((time.perf_counter() - started) / 10)
    torch.cuda.synchronize()
    return median(samples) * 1e6


def launcher(widths: int) -> KernelLauncher:
    some = torch.empty(2, dtype=torch.int64, device=DEVICE)
    options = {"WIDTHS": widths, "TILE": kernels.TILE_NBYTES, "num_warps": kernels.NUM_WARPS, "grid": (1,)}
    return KernelLauncher(kernels.copy_tiles.warmup(some, some, some, 0, **options), 4, DEVICE)


def copies() -> None:
    rows, nbytes = SCENARIOS["80x8192"]
    pool = torch.randint(0, 256, (rows, 512, nbytes), dtype=torch.uint8, device=DEVICE)
    at = [pool.data_ptr() + row * 512 * nbytes for row in range(rows)]
    table = tile_table([Run(a, a, nbytes, nbytes, nbytes) for a in at], DEVICE, kernels.TILE_NBYTES)
    launch = launcher(table.widths)
    chosen = random.Random(0).sample(range(512), 128)
    src, dst = array("q", chosen[:64]), array("q", chosen[64:])
    ids = torch.tensor([list(src), list(dst)], device=DEVICE)
    ring = id_ring(DEVICE)
    stream = torch.cuda.current_stream().cuda_stream

    def direct(address: int) -> None:
        launch(64, table.num_tiles, stream, table.address, address, address + 8 * 64, 0)

    def host_ids() -> None:
        slot, address = ring.upload(stream, src, dst)
        direct(address)
        ring.release(slot, stream)

    for way in (host_ids, partial(direct, ids.data_ptr())):
        pool.random_(0, 256)
        want = pool.clone()
        want[:, list(dst)] = want[:, list(src)]
        way()
        if not torch.equal(pool, want):
            sys.exit(f"{way} moved a wrong byte")
    ways = {
        "ids on the device, Triton's launch": lambda: launch_copy(table, ids, stream),
        "ids on the device, cuLaunchKernel": partial(direct, ids.data_ptr()),
        "ids on the host, torch's upload": lambda: launch_copy(table, upload_ids(DEVICE, src, dst), stream),
        "ids on the host, ring": host_ids,
    }
    for way, call in ways.items():
        print(f"copy, {way}: {submit(call):.1f} us")


class Swap:
    """Staging through a ring of slots, queued by plain driver calls."""

    def __init__(self, rows: int, nbytes: int, num_blocks: int, num_host: int, slot_nbytes: int) -> None:
        self.block = rows * nbytes
        self.pool = torch.randint(0, 256, (rows, num_blocks, nbytes), dtype=torch.uint8, device=DEVICE)
        self.host = pinned_pages(num_host * self.block, device=DEVICE)
        self.base = self.host.data_ptr()
        self.chunk = max(1, slot_nbytes // self.block)
        self.slots = [torch.empty(self.chunk * self.block, dtype=torch.uint8, device=DEVICE) for _ in range(3)]
        at = [self.pool.data_ptr() + row * num_blocks * nbytes for row in range(rows)]
        self.ways = {}
        for out in (True, False):
            tables = []
            for slot in self.slots:
                runs = [Run(a, slot.data_ptr() + row * nbytes, nbytes, self.block, nbytes) for row, a in enumerate(at)]
                if not out:
                    runs = [Run(r.dst, r.src, r.dst_stride, r.src_stride, r.nbytes) for r in runs]
                tables.append(tile_table(runs, DEVICE, kernels.TILE_NBYTES))
            streams = [torch.cuda.Stream(priority=-5) for _ in range(2)]
            events = [[make_event() for _ in self.slots] for _ in range(2)]
            self.ways[out] = (tables, streams, events, make_event())
        self.launch = launcher(16)
        self.ring = id_ring(DEVICE)
        self.turn = 0

    def queue(self, out: bool, device_ids: list[int], host_ids: list[int]) -> None:
        tables, (gather, engine), (full, free), came = self.ways[out]
        gather, engine = gather.cuda_stream, engine.cuda_stream
        current = torch.cuda.current_stream().cuda_stream
        record(came, current)
        wait(gather, came)
        order = sorted(range(len(host_ids)), key=host_ids.__getitem__)
        hosts = [host_ids[at] for at in order]
        chunk, block = self.chunk, self.block
        ids = array("q", [device_ids[at] for at in order])
        rows = array("q", [at % chunk for at in range(len(order))])
        step = 8 * len(order)
        slot_ids = None
        for start in range(0, len(order), chunk):
            count = min(chunk, len(order) - start)
            slot = self.turn = (self.turn + 1) % len(self.slots)
            table = tables[slot]
            staging = self.slots[slot].data_ptr()
            if out:
                if slot_ids is None:
                    slot_ids, address = self.ring.upload(gather, ids, rows)
                wait(gather, free[slot])
                here = address + 8 * start
                self.launch(count, table.num_tiles, gather, table.address, here, here + step, 0)
                record(full[slot], gather)
                wait(engine, full[slot])
            else:
                wait(engine, free[slot])
            device, host, nbytes = array("Q"), array("Q"), array("Q")
            at = start
            while at < start + count:  # neighbours as one piece
                stop = at + 1
                while stop < start + count and hosts[stop] == hosts[stop - 1] + 1:
                    stop += 1
                device.append(staging + (at - start) * block)
                host.append(self.base + hosts[at] * block)
                nbytes.append((stop - at) * block)
                at = stop
            copy_pieces(*((host, device) if out else (device, host)), nbytes, engine)
            if out:
                record(free[slot], engine)
            else:
                record(full[slot], engine)
                if slot_ids is None:
                    slot_ids, address = self.ring.upload(gather, rows, ids)
                wait(gather, full[slot])
                here = address + 8 * start
                self.launch(count, table.num_tiles, gather, table.address, here, here + step, 0)
                record(free[slot], gather)
        self.ring.release(slot_ids, gather)


def timed(call, repeats: int = 15) -> tuple[float, float]:
    totals, submits = [], []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        submits.append(time.perf_counter() - started)
        torch.cuda.synchronize()
        totals.append(time.perf_counter() - started)
    return median(totals[3:]), median(submits[3:])


def measure_limits() -> dict[tuple[bool, ...], float]:
    """Bytes a second of one 1 GiB copy out, in, and of both at once."""
    big = torch.empty(2, 1 << 30, dtype=torch.uint8, device=DEVICE)
    host = [pinned_pages(1 << 30, device=DEVICE) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def carry(*ways: bool) -> None:
        for number, out in enumerate(ways):
            dst, src = (host[number], big[number]) if out else (big[number], host[number])
            with torch.cuda.stream(streams[number]):
                dst.copy_(src, non_blocking=True)

    kinds = ((True,), (False,), (True, False))
    limits = {ways: len(ways) * (1 << 30) / timed(partial(carry, *ways), 8)[0] / 1e9 for ways in kinds}
    print("limits, out and in and both:", [round(rate, 1) for rate in limits.values()])
    return limits


def swaps() -> None:
    limits = measure_limits()
    torch.cuda.empty_cache()
    for name, (rows, nbytes) in SCENARIOS.items():
        for slot in (8, 16, 32, 64):
            swap = Swap(rows, nbytes, 256, 128, max(slot << 20, rows * nbytes))
            rng = random.Random(1)
            device, host_ids = rng.sample(range(256), 192), rng.sample(range(128), 128)
            kept = swap.pool[:, device[:64]].clone()
            rest = swap.pool[:, device[128:]].clone()
            swap.queue(True, device[:64], host_ids[:64])
            torch.cuda.synchronize()
            swap.pool[:, device[:64]] = 0x5A
            torch.cuda.synchronize()
            swap.queue(False, device[64:128], host_ids[:64])
            torch.cuda.synchronize()
            if not torch.equal(swap.pool[:, device[64:128]], kept) or not torch.equal(swap.pool[:, device[128:]], rest):
                sys.exit(f"{name}: a wrong byte")
            out = partial(swap.queue, True, device[:64], host_ids[:64])
            back = partial(swap.queue, False, device[64:128], host_ids[64:])
            line = f"{name} slots of {slot} MiB:"
            for ways, calls in (((True,), (out,)), ((False,), (back,)), ((True, False), (out, back))):
                total, submitted = timed(lambda calls=calls: [call() for call in calls])
                rate = len(calls) * 64 * swap.block / total / 1e9
                line += f"  {rate:.1f} GB/s {rate / limits[ways]:.3f}, submit {submitted * 1e6:.0f} us"
            print(line, flush=True)
            del swap, kept, rest
            torch.cuda.empty_cache()


if __name__ == "__main__":
    copies()
    swaps()
