"""The transfers between staging memory and host blocks: one driver call a chunk, over arrays of addresses."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from operator import sub

from cachecore_torch_default.swap import HostRun

from cachecore_cuda_triton.driver import copy_pieces

__all__ = ["Carrier"]

_KEPT = 256
"""Arrays of staging addresses that are kept: those of every slot, for the numbers of blocks in use."""


class Carrier:
    """One direction of one group. ``row_nbytes`` is a block's length in staging memory."""

    def __init__(
        self, runs: Sequence[HostRun], host_pools: Sequence[int], row_nbytes: int, *, host_is_src: bool
    ) -> None:
        self._runs = [(host_pools[run.pool] + run.start, run.block_stride, run.offset, run.nbytes) for run in runs]
        self._row = row_nbytes
        self._host_is_src = host_is_src
        self._dense = len(runs) == 1 and runs[0].nbytes == runs[0].block_stride == row_nbytes
        self._staging: dict[tuple[int, int], array[int]] = {}
        self._lengths: dict[int, array[int]] = {}

    def queue(self, host_ids: Sequence[int], slot: int, stream: int) -> None:
        """Queue one chunk on ``stream``: the rows from address ``slot`` on, to or from the blocks ``host_ids``.

        A piece a block and run; neighbours are one piece where both sides are dense.
        """
        if self._dense and 1 in map(sub, host_ids[1:], host_ids):
            staging, host, lengths = self._merged(host_ids, slot)
        else:
            staging, lengths = self._templates(slot, len(host_ids))
            host = array("Q", [first + block * stride for first, stride, *_ in self._runs for block in host_ids])
        dst, src = (staging, host) if self._host_is_src else (host, staging)
        copy_pieces(dst, src, lengths, stream)

    def _merged(self, host_ids: Sequence[int], slot: int) -> tuple[array[int], array[int], array[int]]:
        row, first, count = self._row, self._runs[0][0], len(host_ids)
        begins = [0, *(at for at in range(1, count) if host_ids[at] != host_ids[at - 1] + 1), count]
        return (
            array("Q", [slot + at * row for at in begins[:-1]]),
            array("Q", [first + host_ids[at] * row for at in begins[:-1]]),
            array("Q", [(stop - at) * row for at, stop in pairwise(begins)]),
        )

    def _templates(self, slot: int, count: int) -> tuple[array[int], array[int]]:
        """Staging addresses and lengths, which are the same each time: working them out costs more than the call."""
        staging, lengths = self._staging.get((slot, count)), self._lengths.get(count)
        if staging is None or lengths is None:
            if len(self._staging) >= _KEPT:
                self._staging.clear()
                self._lengths.clear()
            staging, lengths = array("Q"), array("Q")
            for _, _, offset, nbytes in self._runs:
                staging.extend(range(slot + offset, slot + offset + count * self._row, self._row))
                lengths.extend([nbytes] * count)
            self._staging[slot, count], self._lengths[count] = staging, lengths
        return staging, lengths
