"""Swaps between the device and page-locked host memory, each direction on streams of its own.

Four ways: *whole*, a block that is one run on both sides is a piece of one batch for the copy engines;
*pitched*, the engines take scattered rows themselves; *staged*, a kernel gathers a chunk of blocks into
staging memory and the engines carry it in long runs; *direct*, a kernel of few programs reads or writes
the host's memory. The calibration says which, for the rows at hand: long rows of a block may go pitched
while its short ones are staged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from cachecore_torch_default import completion_of_stream

from cachecore import COMPLETED, AllocationError, BlockCacheCopy, BlockPairs, CacheLayout, Completion, CopyContext
from cachecore_cuda_triton.block_copy import pool_addresses
from cachecore_cuda_triton.by_engines import EngineCopies
from cachecore_cuda_triton.calibration import choose, engines_way, forced_way
from cachecore_cuda_triton.driver import why_each
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import compile_ahead, copy_host_pairs, current_stream, on_device
from cachecore_cuda_triton.measuring import DIRECT_PROGRAMS
from cachecore_cuda_triton.staged import StagedMoves
from cachecore_cuda_triton.staging import staging_ring
from cachecore_cuda_triton.submission import record, wait
from cachecore_cuda_triton.tiles import runs_of, tile_table

__all__ = ["CudaSwap"]


_HINT = "; a plan with LayoutHints(one_run_per_block=True) moves whole blocks"


def _has_rows(layout: CacheLayout) -> bool:
    """Whether a block is many runs of the device that the hint would make one: dense rows it cannot."""
    return layout.num_runs > 1 and "contiguous" not in layout.kind


class CudaSwap(BlockCacheCopy):
    """One direction of one group. ``path`` says which way the last swap went, ``reason`` why."""

    def __init__(self, context: CopyContext, *, host_is_src: bool) -> None:
        self._host_is_src = host_is_src
        host, device = (context.src, context.dst) if host_is_src else (context.dst, context.src)
        self._device: torch.device = device.pools[0].device if device.pools else torch.device("cuda", 0)
        self._held = host.pools, device.pools  # tables hold addresses, so the memory must stay
        src, dst = pool_addresses(context.src.pools), pool_addresses(context.dst.pools)
        host_pools, device_pools = (src, dst) if host_is_src else (dst, src)
        direction = "in" if host_is_src else "out"
        self._ring = staging_ring(self._device, direction)
        self._direct = tile_table(runs_of(context.segments, src, dst), self._device, TILE_NBYTES)
        self._block_nbytes = context.block_nbytes
        segments = [segment for segment in context.segments if segment.nbytes and segment.num_pages]
        runs = [(segment.nbytes, segment.num_pages) for segment in segments]
        hint = _HINT if _has_rows(device.layout) else ""
        self._way, by_engines, self._direct_nbytes, self._why = choose(self._device, direction, runs, hint)
        long = [segment for segment, yes in zip(segments, by_engines, strict=True) if yes]
        short = [segment for segment, yes in zip(segments, by_engines, strict=True) if not yes]
        self._staged: StagedMoves | None = None
        if short and self._way != "direct":
            try:
                self._staged = StagedMoves(
                    short, host_pools, device_pools, self._ring, host_is_src=host_is_src, allocation=id(device)
                )
            except AllocationError as error:
                if forced_way() is not None:
                    raise
                long, self._way, self._direct_nbytes = segments, engines_way(runs), 0
                self._why = f"{error}; the copy engines take the rows themselves"
        self._engines = EngineCopies(long, src, dst) if long else None
        if self._way == "direct" or self._direct_nbytes:
            compile_ahead(self._direct, "few")
        self.workspace_nbytes = self._ring.nbytes if self._staged is not None else 0
        self.slower = each = why_each()
        ends = ("", "") if each is None else (":memcpy-each", f"; {each}")
        self._told = f"cuda:{self._way}{ends[0]}", f"{self._why}{ends[1]}"
        self._goes_direct(64)

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Queue the swap; the host waits for nothing, and the caller's stream only when told to."""
        if not self._block_nbytes:
            return COMPLETED
        ring = self._ring
        with on_device(self._device), ring.lock:  # engines of one device share it, and have threads of their own
            record(ring.came, current_stream(self._device))
            for completion in after:
                completion.wait(ring.kernels)
                completion.wait(ring.engines)
            if self._goes_direct(len(pairs.src)):
                wait(ring.kernels_handle, ring.came)
                copy_host_pairs(self._direct, pairs.src, pairs.dst, ring.kernels_handle, num_programs=DIRECT_PROGRAMS)
                return completion_of_stream(self._device, ring.kernels)
            return self._move(pairs)

    def _goes_direct(self, num_blocks: int) -> bool:
        """Whether so many blocks go by the kernel of few programs; ``path`` and ``reason`` tell the way."""
        nbytes, most = num_blocks * self._block_nbytes, self._direct_nbytes
        if self._way != "direct" and (nbytes > most or not most):
            self.path, self.reason = self._told
            return False
        few = f"{nbytes} bytes; a kernel of few programs is faster up to {most}"
        self.path, self.reason = "cuda:direct", self._why if self._way == "direct" else few
        return True

    def _move(self, pairs: BlockPairs) -> Completion:
        # Out sees every write queued before. In must not overwrite what a queued kernel still reads; of staging
        # only the last step writes, so the link is busy meanwhile.
        ring, staged = self._ring, self._staged
        if staged is None:
            self._by_engines(pairs)
            return completion_of_stream(self._device, ring.engines)
        wait(ring.kernels_handle, ring.came)
        staged.queue(pairs, None if self._engines is None else lambda: self._by_engines(pairs))
        if not self._host_is_src:
            return completion_of_stream(self._device, ring.engines)
        if self._engines is not None:  # both streams write
            record(ring.came, ring.engines_handle)
            wait(ring.kernels_handle, ring.came)
        return completion_of_stream(self._device, ring.kernels)

    def _by_engines(self, pairs: BlockPairs) -> None:
        if self._engines is not None:
            wait(self._ring.engines_handle, self._ring.came)
            self._engines.queue(pairs, self._ring.engines_handle)
