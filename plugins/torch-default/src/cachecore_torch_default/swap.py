"""Swaps between a device and the host: gathered on the device, carried in as few runs as the host has."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cachecore import COMPLETED, PINNED_HOST, BlockCacheCopy, BlockPairs, Completion, CopyContext, CopySegment
from cachecore_torch_default.block_copy import WORKSPACE_NBYTES, copy_words
from cachecore_torch_default.completion import completion_of_stream, has_streams
from cachecore_torch_default.segments import SegmentGroup, fold_segments, group_word_nbytes, part_segments, word_tensor
from cachecore_torch_default.tensors import ids_on, synchronize

__all__ = ["HostRun", "StagedSwap", "stage_segments"]

_ROW_ALIGNMENT = 16


class HostRun(NamedTuple):
    """Bytes that stand together in a host block and in a staging row; all numbers are bytes."""

    pool: int
    start: int
    block_stride: int
    offset: int
    nbytes: int


def stage_segments(
    segments: Sequence[CopySegment], *, host_is_src: bool
) -> tuple[tuple[CopySegment, ...], tuple[HostRun, ...], int]:
    """Cut the way at a staging row that holds a block's payload in host order.

    Returns device-to-staging segments (staging is pool 0 of the destination), the host's runs, and
    the staging row's length.
    """
    pages = []
    for segment in segments:
        src = (segment.src_pool, segment.src_start, segment.src_block_stride, segment.src_page_stride)
        dst = (segment.dst_pool, segment.dst_start, segment.dst_block_stride, segment.dst_page_stride)
        host, device = (src, dst) if host_is_src else (dst, src)
        for page in range(segment.num_pages):
            at = host[0], host[1] + page * host[3], host[2]
            pages.append((at, (device[0], device[1] + page * device[3], device[2]), segment.nbytes))
    runs: list[HostRun] = []
    staged: list[tuple[tuple[int, int, int], int, int]] = []
    end = 0
    for (pool, start, stride), device_at, nbytes in sorted(pages):
        last = runs[-1] if runs else None
        if last is not None and (last.pool, last.start + last.nbytes, last.block_stride) == (pool, start, stride):
            runs[-1] = last._replace(nbytes=last.nbytes + nbytes)
        else:
            end = -(-end // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
            runs.append(HostRun(pool, start, stride, end, nbytes))
        staged.append((device_at, end, nbytes))
        end += nbytes
    row = end if len(runs) == 1 else -(-end // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
    return (
        tuple(CopySegment(*at, 0, 0, offset, row, 0, nbytes, 1) for at, offset, nbytes in staged),
        tuple(runs),
        row,
    )


class _Part(NamedTuple):
    """What one filling of the staging area carries of each block: all of it, unless a block is very large.

    ``step`` counts the blocks whose staging rows of ``row_nbytes`` fit at once.
    """

    groups: tuple[tuple[SegmentGroup, Tensor, torch.dtype], ...]
    runs: tuple[HostRun, ...]
    row_nbytes: int
    step: int


class StagedSwap(BlockCacheCopy):
    """Device to host or back, through a bounded staging area on the device.

    On a device with streams the swap runs on one of its own: it starts after what the caller's
    stream had queued, and the caller's stream does not wait for it unless told to.
    """

    path = "torch:staged"
    workspace_nbytes = WORKSPACE_NBYTES

    def __init__(self, context: CopyContext, *, host_is_src: bool | None = None) -> None:
        if host_is_src is None:
            host_is_src = context.src.device.type == "cpu"
        self._host_is_src = host_is_src
        host, device = (context.src, context.dst) if host_is_src else (context.dst, context.src)
        num_blocks = context.num_dst_blocks if host_is_src else context.num_src_blocks
        self._device: torch.device = device.pools[0].device if device.pools else torch.device("cpu")
        self._host = [pool.view(-1) for pool in host.pools]
        words = copy_words(context)
        self._parts: list[_Part] = []
        for part in part_segments(context.segments, WORKSPACE_NBYTES // 4):
            segments, runs, row_nbytes = stage_segments(part, host_is_src=host_is_src)
            groups: list[tuple[SegmentGroup, Tensor, torch.dtype]] = []
            for group in fold_segments(segments):
                pool = device.pools[group.src_pool]
                word = words[group_word_nbytes(group, pool.storage_offset(), 0, max(words))]
                dims = [(dim.num_steps, dim.src_stride) for dim in group.dims]
                at = group.src_start, num_blocks, group.src_block_stride
                groups.append((group, word_tensor(pool, *at, dims, group.nbytes, word), word))
            # Half for the staging rows, half for what one group's gather takes beside them.
            step = max(1, WORKSPACE_NBYTES // 2 // max(1, row_nbytes))  # aligned, one row may be longer than its bytes
            self._parts.append(_Part(tuple(groups), runs, row_nbytes, step))
        self._stream: Any = None
        if has_streams(self._device):
            self._stream = torch.get_device_module(self._device).Stream(device=self._device)
        self._waits = self._stream is None or host.memory_kind != PINNED_HOST  # pageable memory is copied in the caller

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Swap whole blocks; returns when queued, or when done where there are no streams or no page-locked memory."""
        if self._stream is None:
            for completion in after:
                completion.synchronize()
            self._swap(pairs)
            synchronize(self._device)
            return COMPLETED
        module = torch.get_device_module(self._device)
        self._stream.wait_stream(module.current_stream(self._device))
        for completion in after:
            completion.wait(self._stream)
        with module.stream(self._stream):
            held = self._swap(pairs)
        if self._waits:
            self._stream.synchronize()
            return COMPLETED
        return completion_of_stream(self._device, self._stream, held=held)

    def _swap(self, pairs: BlockPairs) -> tuple[Tensor, ...]:
        """Queue the whole swap on the current stream; returns what must live until it is done."""
        ordered = sorted(pairs, key=lambda pair: pair[0] if self._host_is_src else pair[1])
        host_ids = [src if self._host_is_src else dst for src, dst in ordered]
        device_ids = ids_on(self._device, array("q", [dst if self._host_is_src else src for src, dst in ordered]))[0]
        num_rows = [min(part.step, len(ordered)) for part in self._parts]
        staging = self._take(max(rows * part.row_nbytes for rows, part in zip(num_rows, self._parts, strict=True)))
        for rows, part in zip(num_rows, self._parts, strict=True):
            self._swap_part(part, host_ids, device_ids, staging, rows)
        return staging, device_ids

    def _take(self, nbytes: int) -> Tensor:
        with torch.inference_mode(False):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _swap_part(self, part: _Part, host_ids: Sequence[int], device_ids: Tensor, staging: Tensor, rows: int) -> None:
        staged = [_staging_rows(staging, rows, group, word) for group, _, word in part.groups]
        with_gaps = [] if self._host_is_src else [one.nbytes for one in staged if not one.is_contiguous()]
        gathered = self._take(max(with_gaps, default=0))
        for start in range(0, len(host_ids), rows):
            hosts, ids = host_ids[start : start + rows], device_ids[start : start + rows]
            if self._host_is_src:
                self._carry(part, hosts, staging)
                for (_, tensor, _), rows_of in zip(part.groups, staged, strict=True):
                    tensor.index_copy_(0, ids, rows_of[: len(hosts)])
            else:
                for (_, tensor, _), rows_of in zip(part.groups, staged, strict=True):
                    _gather(tensor, ids, rows_of[: len(hosts)], gathered)
                self._carry(part, hosts, staging)

    def _carry(self, part: _Part, host_ids: Sequence[int], staging: Tensor) -> None:
        """Move staging rows to or from their host blocks, neighbours in one transfer where they adjoin."""
        for run in part.runs:
            dense = run.nbytes == run.block_stride == part.row_nbytes
            for at, block, count in _neighbours(host_ids) if dense else ((i, b, 1) for i, b in enumerate(host_ids)):
                first = run.start + block * run.block_stride
                host = self._host[run.pool][first : first + count * run.nbytes]
                row = at * part.row_nbytes + run.offset
                device = staging[row : row + count * run.nbytes]
                dst, src = (device, host) if self._host_is_src else (host, device)
                dst.copy_(src, non_blocking=True)


def _staging_rows(staging: Tensor, num_rows: int, group: SegmentGroup, word: torch.dtype) -> Tensor:
    """``word[num_rows, *dims, words]``: where the staging rows keep what ``group`` moves."""
    dims = [(dim.num_steps, dim.dst_stride) for dim in group.dims]
    return word_tensor(staging, group.dst_start, num_rows, group.dst_block_stride, dims, group.nbytes, word)


def _gather(tensor: Tensor, ids: Tensor, rows: Tensor, gathered: Tensor) -> None:
    """Blocks ``ids`` into ``rows``, by way of dense memory where the rows have gaps.

    Into memory that is there: a device may make the caller wait before it returns a new tensor.
    """
    dense = rows
    if not rows.is_contiguous():  # whether an out= with gaps is written right differs between devices
        dense = gathered[: rows.numel() * rows.itemsize].view(rows.dtype).view(rows.shape)
    torch.index_select(tensor, 0, ids, out=dense)
    if dense is not rows:
        rows.copy_(dense)


def _neighbours(blocks: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ``(position, block, count)`` of neighbouring ids at neighbouring positions."""
    start = 0
    for at in range(1, len(blocks) + 1):
        if at == len(blocks) or blocks[at] != blocks[at - 1] + 1:
            yield start, blocks[start], at - start
            start = at
