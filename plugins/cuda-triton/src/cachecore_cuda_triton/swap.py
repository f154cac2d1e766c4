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

from cachecore import COMPLETED, BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_cuda_triton.block_copy import pool_addresses
from cachecore_cuda_triton.calibration import DIRECT_PROGRAMS, calibration, forced_way
from cachecore_cuda_triton.carry import Carrier
from cachecore_cuda_triton.driver import why_each
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import Upload, copy_host_pairs, current_stream, launch_copy_at, upload
from cachecore_cuda_triton.pitched import PitchedCopies
from cachecore_cuda_triton.staging import staging_ring
from cachecore_cuda_triton.submission import record, wait
from cachecore_cuda_triton.tiles import Run, TileTable, runs_of, tile_table

__all__ = ["CudaSwap"]

_NUM_CHUNKS = 3
"""Chunks of a swap at least, so that gathering or scattering one of them runs beside the link."""

_CHUNK_NBYTES = 8 << 20
"""Bytes of a chunk at least: queuing one takes some 30 µs of CPU, and the link 150 for this much."""


class CudaSwap(BlockCacheCopy):
    """One direction of one group. ``path`` says which way the last swap went, ``reason`` why."""

    def __init__(self, context: CopyContext, *, host_is_src: bool) -> None:
        self._host_is_src = host_is_src
        host, device = (context.src, context.dst) if host_is_src else (context.dst, context.src)
        self._device: torch.device = device.pools[0].device if device.pools else torch.device("cuda", 0)
        self._direction = "in" if host_is_src else "out"
        self._held = host.pools, device.pools  # tables hold addresses, so the memory must stay
        self._segments, runs, self._row = stage_segments(context.segments, host_is_src=host_is_src)
        self._carrier = Carrier(runs, pool_addresses(host.pools), self._row, host_is_src=host_is_src)
        self._device_bases = pool_addresses(device.pools)
        self._ring = staging_ring(self._device, self._direction, self._row)
        self._generation = 0
        self._tables: list[TileTable] = []
        self._slots: list[int] = []
        ends = pool_addresses(context.src.pools), pool_addresses(context.dst.pools)
        self._direct = tile_table(runs_of(context.segments, *ends), self._device, TILE_NBYTES)
        self._pitched = PitchedCopies(context.segments, *ends)
        self._forced = forced_way()
        self._choices: dict[int, tuple[str, str]] = {}
        self.workspace_nbytes = self._ring.nbytes
        self.slower = why_each()
        self.path, self.reason = self._choose(64)
        self._bind()

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Queue the swap; the host waits for nothing, and the caller's stream only when told to."""
        if not self._row:
            return COMPLETED
        ring = self._ring
        with ring.lock:  # engines of one device share it, and may be used from threads of their own
            self.path, self.reason = self._choices.get(len(pairs)) or self._choose(len(pairs))
            way = self.path.split(":")[1]
            # Out sees every write queued before. In must not overwrite what a queued kernel still reads; with
            # staging only the last step writes, so the link is busy meanwhile.
            first = ring.engines if way == "pitched" else ring.kernels
            record(ring.came, current_stream(self._device))
            wait(first.cuda_stream, ring.came)
            for completion in after:
                completion.wait(ring.kernels)
                completion.wait(ring.engines)
            if way == "pitched":
                self._pitched.queue(pairs, ring.engines.cuda_stream)
                return completion_of_stream(self._device, ring.engines)
            if way == "direct":
                stream = ring.kernels.cuda_stream
                copy_host_pairs(self._direct, pairs.src, pairs.dst, stream, num_programs=DIRECT_PROGRAMS)
                return completion_of_stream(self._device, ring.kernels)
            return self._staged(pairs)

    def _choose(self, num_blocks: int) -> tuple[str, str]:
        each = why_each()
        suffix = ":memcpy-each" if each else ""
        if self._forced is not None:
            choice = f"cuda:{self._forced}{suffix}", f"forced by CACHECORE_CUDA_SWAP={self._forced}"
        else:
            way, reason = calibration(self._device, self._direction).way(self._pitched.run_nbytes, num_blocks)
            choice = (
                f"cuda:{way}{suffix if way != 'direct' else ''}",
                reason if each is None else f"{reason}; {each}",
            )
        if len(self._choices) < 1024:
            self._choices[num_blocks] = choice
        return choice

    def _bind(self) -> None:
        """Tables of where each staging slot stands, which moves when a group with larger blocks comes."""
        ring = self._ring
        self._slots = [slot.data_ptr() for slot in ring.slots]
        self._tables = [
            tile_table(
                _towards(runs_of(self._segments, self._device_bases, [slot]), self._host_is_src),
                self._device,
                TILE_NBYTES,
            )
            for slot in self._slots
        ]
        self._generation = ring.generation

    def _staged(self, pairs: BlockPairs) -> Completion:
        ring = self._ring
        if self._generation != ring.generation:
            self._bind()
        hosts, devices = (pairs.src, pairs.dst) if self._host_is_src else (pairs.dst, pairs.src)
        order = sorted(range(len(hosts)), key=hosts.__getitem__)
        host_ids = [hosts[at] for at in order]
        device_ids = array("q", [devices[at] for at in order])
        chunk = self._chunk(len(order))
        rows = (array("q", range(chunk)) * -(-len(order) // chunk))[: len(order)]
        both = (rows, device_ids) if self._host_is_src else (device_ids, rows)
        chunks = [(start, host_ids[start : start + chunk]) for start in range(0, len(order), chunk)]
        (self._bring if self._host_is_src else self._send)(chunks, both)
        return completion_of_stream(self._device, ring.kernels if self._host_is_src else ring.engines)

    def _send(self, chunks: Sequence[tuple[int, Sequence[int]]], both: tuple[array[int], array[int]]) -> None:
        """Gather each chunk, then let the link carry it."""
        ring = self._ring
        kernels, engines = ring.kernels.cuda_stream, ring.engines.cuda_stream
        ids = upload(self._device, kernels, *both)
        for start, host_ids in chunks:
            slot = ring.next()
            wait(kernels, ring.free[slot])
            self._move(ids, start, len(host_ids), slot=slot, of=len(both[0]))
            record(ring.full[slot], kernels)
            wait(engines, ring.full[slot])
            self._carrier.queue(host_ids, self._slots[slot], engines)
            record(ring.free[slot], engines)
        ids.release(kernels)

    def _bring(self, chunks: Sequence[tuple[int, Sequence[int]]], both: tuple[array[int], array[int]]) -> None:
        """Let the link carry each chunk, then scatter it; the first is on its way before the ids are."""
        ring = self._ring
        kernels, engines = ring.kernels.cuda_stream, ring.engines.cuda_stream
        ids: Upload | None = None
        for start, host_ids in chunks:
            slot = ring.next()
            wait(engines, ring.free[slot])
            self._carrier.queue(host_ids, self._slots[slot], engines)
            record(ring.full[slot], engines)
            if ids is None:
                ids = upload(self._device, kernels, *both)
            wait(kernels, ring.full[slot])
            self._move(ids, start, len(host_ids), slot=slot, of=len(both[0]))
            record(ring.free[slot], kernels)
        if ids is not None:
            ids.release(kernels)

    def _chunk(self, num_blocks: int) -> int:
        """Blocks of a chunk: a part of the swap, within what a slot holds and what is worth queuing."""
        least = -(-_CHUNK_NBYTES // self._row)
        return min(self._ring.slots[0].numel() // self._row, max(least, -(-num_blocks // _NUM_CHUNKS)))

    def _move(self, ids: Upload, start: int, count: int, *, slot: int, of: int) -> None:
        """Gather or scatter one chunk."""
        table = self._tables[slot]
        if table.num_tiles:
            at = ids.address + 8 * start
            launch_copy_at(table, at, at + 8 * of, count, self._ring.kernels.cuda_stream)


def _towards(runs: Sequence[Run], host_is_src: bool) -> Sequence[Run]:
    """``runs`` go from the device to staging; the other way round for a swap in."""
    if not host_is_src:
        return runs
    return [Run(run.dst, run.src, run.dst_stride, run.src_stride, run.nbytes) for run in runs]
