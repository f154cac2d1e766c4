"""Staged moves: a kernel gathers chunks of blocks into a ring, and the copy engines carry them; or the other way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from cachecore_torch_default.swap import stage_segments

from cachecore import BlockPairs, CopySegment
from cachecore_cuda_triton.carry import Carrier
from cachecore_cuda_triton.kernels import TILE_NBYTES
from cachecore_cuda_triton.launch import compile_ahead, launch_copy_at, upload
from cachecore_cuda_triton.staging import MOST_ROWS, StagingRing
from cachecore_cuda_triton.submission import record, wait
from cachecore_cuda_triton.tiles import Run, TileTable, runs_of, tile_table

__all__ = ["StagedMoves"]

_WORTH_TWO = 8 << 20
"""Bytes from which a swap goes in chunks: queuing one more takes some 30 µs of CPU, and the link 150 for this much."""

_FIRST_PART = 8
"""The chunk that nothing hides is this part of a swap: while the link carries it, a kernel gathers all the rest."""


class StagedMoves:
    """Some segments of every block, in one direction. Whoever calls :meth:`queue` holds the ring's lock.

    ``allocation`` is the id of the device's, while which is awake the ring has its slots.
    """

    def __init__(
        self,
        segments: Sequence[CopySegment],
        host_pools: Sequence[int],
        device_pools: Sequence[int],
        ring: StagingRing,
        *,
        host_is_src: bool,
        allocation: int = 0,
    ) -> None:
        self._host_is_src = host_is_src
        self._segments, runs, self.row_nbytes = stage_segments(segments, host_is_src=host_is_src)
        self._carrier = Carrier(runs, host_pools, self.row_nbytes, host_is_src=host_is_src)
        self._device_pools = device_pools
        self._ring = ring
        self.allocation, self.is_awake = allocation, True
        self._generation = 0
        self._tables: list[TileTable] = []
        self._slots: list[int] = []
        with ring.lock:  # the slots stay where they are meanwhile, though another thread builds an engine
            ring.join(self)
            self._bind()

    def queue(self, pairs: BlockPairs, beside: Callable[[], None] | None = None) -> None:
        """Queue every chunk; ``beside`` queues more for the engines, once the kernels have work to do."""
        if self._generation != self._ring.generation:
            self._bind()
        (self._bring if self._host_is_src else self._send)(pairs, beside)

    def _send(self, pairs: BlockPairs, beside: Callable[[], None] | None) -> None:
        """Gather each chunk, then let the link carry it."""
        ring, hosts = self._ring, pairs.dst
        kernels, engines = ring.kernels_handle, ring.engines_handle
        ids = upload(ring.device, kernels, pairs.src)
        try:
            for start, stop in self._chunks(len(pairs)):
                slot = ring.next()
                wait(kernels, ring.free[slot])
                launch_copy_at(self._tables[slot], ids.address + 8 * start, ring.numbers_at, stop - start, kernels)
                record(ring.full[slot], kernels)
                if beside is not None and not start:
                    beside()
                wait(engines, ring.full[slot])
                self._carrier.queue(hosts[start:stop], self._slots[slot], engines)
                record(ring.free[slot], engines)
        finally:
            ids.release(kernels)

    def _bring(self, pairs: BlockPairs, beside: Callable[[], None] | None) -> None:
        """Let the link carry each chunk, then scatter it; the first is on its way before the ids are."""
        ring, hosts = self._ring, pairs.src
        kernels, engines = ring.kernels_handle, ring.engines_handle
        ids = None
        try:
            for start, stop in self._chunks(len(pairs)):
                slot = ring.next()
                wait(engines, ring.free[slot])
                self._carrier.queue(hosts[start:stop], self._slots[slot], engines)
                record(ring.full[slot], engines)
                if ids is None:
                    ids = upload(ring.device, kernels, pairs.dst)
                wait(kernels, ring.full[slot])
                launch_copy_at(self._tables[slot], ring.numbers_at, ids.address + 8 * start, stop - start, kernels)
                record(ring.free[slot], kernels)
        finally:
            if ids is not None:
                ids.release(kernels)
        if beside is not None:
            beside()

    def _chunks(self, num_blocks: int) -> list[tuple[int, int]]:
        """``(start, stop)`` of each, with a small one where the link and the kernels would wait for one another."""
        most = min(MOST_ROWS, self._ring.slots[0].numel() // self.row_nbytes)
        first = num_blocks if num_blocks * self.row_nbytes < _WORTH_TWO else max(1, num_blocks // _FIRST_PART)
        sizes = [min(first, most)]
        rest = num_blocks - sizes[0]
        sizes += [most] * (rest // most) + [rest % most] * bool(rest % most)
        if self._host_is_src:
            sizes.reverse()
        stops = list(accumulate(sizes))
        return list(zip([0, *stops], stops, strict=False))

    def _bind(self) -> None:
        """Tables of where each slot stands, which moves when a group with larger blocks comes."""
        ring = self._ring
        self._slots = [slot.data_ptr() for slot in ring.slots]
        self._tables = [
            tile_table(
                _towards(runs_of(self._segments, self._device_pools, [slot]), self._host_is_src),
                ring.device,
                TILE_NBYTES,
            )
            for slot in self._slots
        ]
        compile_ahead(self._tables[0], "copy")
        self._generation = ring.generation


def _towards(runs: Sequence[Run], host_is_src: bool) -> Sequence[Run]:
    """``runs`` go from the device to staging; the other way round for a swap in."""
    if not host_is_src:
        return runs
    return [Run(run.dst, run.src, run.dst_stride, run.src_stride, run.nbytes) for run in runs]
