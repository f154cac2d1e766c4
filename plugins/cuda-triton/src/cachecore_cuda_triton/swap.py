"""Swaps between the device and page-locked host memory, each direction on streams of its own.

Three ways: *pitched*, the copy engines take scattered rows themselves; *staged*, a kernel gathers a
chunk of blocks into staging memory and the engines carry it in long runs; *direct*, a kernel of few
programs reads or writes the host's memory. The calibration says which, for the rows at hand.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from cachecore_torch_default import completion_of_stream
from cachecore_torch_default.swap import stage_segments

from cachecore import BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_cuda_triton.block_copy import pool_addresses
from cachecore_cuda_triton.calibration import DIRECT_PROGRAMS, calibration, forced_way
from cachecore_cuda_triton.driver import copy_pieces, why_each
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import launch_copy, launch_copy_few, upload_ids
from cachecore_cuda_triton.pitched import PitchedCopies
from cachecore_cuda_triton.staging import staging_ring
from cachecore_cuda_triton.tiles import Run, runs_of, tile_table

__all__ = ["CudaSwap"]


class CudaSwap(BlockCacheCopy):
    """One direction of one group. ``path`` says which way the last swap went, ``reason`` why."""

    def __init__(self, context: CopyContext, *, host_is_src: bool) -> None:
        self._host_is_src = host_is_src
        host, device = (context.src, context.dst) if host_is_src else (context.dst, context.src)
        self._device: torch.device = device.pools[0].device
        self._direction = "in" if host_is_src else "out"
        self._held = host.pools, device.pools  # tables hold addresses, so the memory must stay
        segments, self._host_runs, self._row = stage_segments(context.segments, host_is_src=host_is_src)
        self._host_bases = pool_addresses(host.pools)
        self._ring = ring = staging_ring(self._device, self._direction, self._row)
        self._chunk = max(1, ring.slots[0].numel() // max(1, self._row))
        device_bases = pool_addresses(device.pools)
        self._tables = [
            tile_table(
                _towards(runs_of(segments, device_bases, [slot.data_ptr()]), host_is_src), self._device, TILE_NBYTES
            )
            for slot in ring.slots
        ]
        ends = pool_addresses(context.src.pools), pool_addresses(context.dst.pools)
        self._direct = tile_table(runs_of(context.segments, *ends), self._device, TILE_NBYTES)
        self._pitched = PitchedCopies(context.segments, *ends)
        self._forced = forced_way()
        self.workspace_nbytes = ring.nbytes
        self.path, self.reason = self._choose(64)

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Queue the swap; the host waits for nothing, and the caller's stream only when told to."""
        ring = self._ring
        current = torch.cuda.current_stream(self._device)
        self.path, self.reason = self._choose(len(pairs))
        way = self.path.split(":")[1]
        # Out sees every write queued before. In must not overwrite what a queued kernel still reads; with
        # staging only the last step writes, so the link is busy meanwhile.
        first = ring.engines if way == "pitched" else ring.kernels
        first.wait_stream(current)
        for completion in after:
            completion.wait(ring.kernels)
            completion.wait(ring.engines)
        if way == "pitched":
            self._pitched.queue(pairs, ring.engines.cuda_stream)
            return completion_of_stream(self._device, ring.engines)
        if way == "direct":
            with torch.cuda.stream(ring.kernels):
                ids = upload_ids(self._device, pairs.src, pairs.dst)
            launch_copy_few(self._direct, ids, ring.kernels.cuda_stream, num_programs=DIRECT_PROGRAMS)
            return completion_of_stream(self._device, ring.kernels, held=(ids,))
        return self._staged(pairs)

    def _choose(self, num_blocks: int) -> tuple[str, str]:
        each = why_each()
        suffix = ":memcpy-each" if each else ""
        if self._forced is not None:
            return f"cuda:{self._forced}{suffix}", f"forced by CACHECORE_CUDA_SWAP={self._forced}"
        way, reason = calibration(self._device, self._direction).way(self._pitched.run_nbytes, num_blocks)
        return f"cuda:{way}{suffix if way != 'direct' else ''}", reason if each is None else f"{reason}; {each}"

    def _staged(self, pairs: BlockPairs) -> Completion:
        ring = self._ring
        host_side = 0 if self._host_is_src else 1
        ordered = sorted(pairs, key=lambda pair: pair[host_side])
        host_ids = [pair[host_side] for pair in ordered]
        device_ids = array("q", [pair[1 - host_side] for pair in ordered])
        rows = array("q", [at % self._chunk for at in range(len(ordered))])
        kernels = ring.kernels.cuda_stream
        with torch.cuda.stream(ring.kernels):
            ids = upload_ids(self._device, *((rows, device_ids) if self._host_is_src else (device_ids, rows)))
        for start in range(0, len(ordered), self._chunk):
            count = min(self._chunk, len(ordered) - start)
            slot = ring.next()
            if self._host_is_src:
                ring.engines.wait_event(ring.free[slot])
                self._carry(host_ids[start : start + count], slot)
                ring.full[slot].record(ring.engines)
                ring.kernels.wait_event(ring.full[slot])
                launch_copy(self._tables[slot], ids, kernels, start=start, count=count)
                ring.free[slot].record(ring.kernels)
            else:
                ring.kernels.wait_event(ring.free[slot])
                launch_copy(self._tables[slot], ids, kernels, start=start, count=count)
                ring.full[slot].record(ring.kernels)
                ring.engines.wait_event(ring.full[slot])
                self._carry(host_ids[start : start + count], slot)
                ring.free[slot].record(ring.engines)
        last = ring.kernels if self._host_is_src else ring.engines
        return completion_of_stream(self._device, last, held=(ids,))

    def _carry(self, host_ids: Sequence[int], slot: int) -> None:
        """Queue the transfers between a staging slot and the host's blocks, a piece a block and run."""
        base = self._ring.slots[slot].data_ptr()
        staging, host, nbytes = array("Q"), array("Q"), array("Q")
        for run in self._host_runs:
            start = base + run.offset
            staging.extend(range(start, start + len(host_ids) * self._row, self._row))
            first = self._host_bases[run.pool] + run.start
            host.extend([first + block * run.block_stride for block in host_ids])
            nbytes.extend([run.nbytes] * len(host_ids))
        dst, src = (staging, host) if self._host_is_src else (host, staging)
        copy_pieces(dst, src, nbytes, self._ring.engines.cuda_stream)


def _towards(runs: Sequence[Run], host_is_src: bool) -> Sequence[Run]:
    """``runs`` go from the device to staging; the other way round for a swap in."""
    if not host_is_src:
        return runs
    return [Run(run.dst, run.src, run.dst_stride, run.src_stride, run.nbytes) for run in runs]
