"""Block copies on one device: gather the source blocks, scatter them to their destinations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachecore import BlockCacheCopy, BlockPairs, BlockPairsError, Completion, CopyContext
from cachecore_torch_default.backend import TorchBackend
from cachecore_torch_default.completion import completion_of_current_stream
from cachecore_torch_default.segments import fold_segments, group_tensors, part_segments
from cachecore_torch_default.tensors import ids_on

__all__ = ["WORKSPACE_NBYTES", "GatherScatterCopy", "check_device_ids", "copy_words", "copy_words_of"]

WORKSPACE_NBYTES = 64 << 20
"""Most temporary bytes a copy takes at once."""

_Group = tuple[Tensor, Tensor, int]
"""Source and destination blocks, and how many of them the workspace holds."""


class GatherScatterCopy(BlockCacheCopy):
    """``index_select`` into a bounded temporary, then ``index_copy_``: works on every torch device.

    Runs on the caller's stream. Source and destination may be one allocation or two layouts on one
    device. Words are integers, never the typed views. Neighbouring pairs are copied as one run, without a
    temporary, wherever that takes no more calls: always for blocks as large as state slots are.
    """

    path = "torch:gather-scatter"
    workspace_nbytes = WORKSPACE_NBYTES

    def __init__(self, context: CopyContext) -> None:
        words = copy_words(context)
        counts = (context.num_src_blocks, context.num_dst_blocks)
        self.device: torch.device = context.dst.pools[0].device if context.dst.pools else torch.device("cpu")
        self._groups: list[_Group] = []
        parts = part_segments(context.segments, WORKSPACE_NBYTES)
        for group in (group for part in parts for group in fold_segments(part)):
            src, dst = context.src.pools[group.src_pool], context.dst.pools[group.dst_pool]
            tensors = group_tensors(group, src, dst, counts, words)
            self._groups.append((*tensors, WORKSPACE_NBYTES // group.block_nbytes))

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy on the caller's current stream."""
        for completion in after:
            completion.wait()
        runs = list(pairs.runs())
        gathered = []
        for group in self._groups:
            if len(runs) > 2 * -(-len(pairs) // group[2]):  # a gather and a scatter for every step of pairs
                gathered.append(group)
            else:
                _copy_runs(group[0], group[1], runs)
        if gathered:
            ids = ids_on(self.device, pairs.src, pairs.dst)
            self._copy(gathered, ids[0], ids[1])
        return completion_of_current_stream(self.device)

    def on_device(self, ids: Tensor) -> None:
        """Copy with device-resident ids; the temporaries come from torch's caching (or a graph's private) pool."""
        check_device_ids(ids, self.device)
        src, dst = ids[0], ids[1]
        # Padding repeats the first real pair, which writes the same bytes twice; with nothing but
        # padding, block 0 is copied onto itself. The shapes do not depend on the values.
        real = (src >= 0) & (dst >= 0)
        first = ids[:, real.to(torch.uint8).argmax().view(1)].clamp(min=0)
        first = torch.where(real.any(), first, torch.zeros_like(first))
        self._copy(self._groups, torch.where(real, src, first[0]), torch.where(real, dst, first[1]))

    def _copy(self, groups: Sequence[_Group], src_ids: Tensor, dst_ids: Tensor) -> None:
        for src, dst, step in groups:
            _copy_group(src, dst, src_ids, dst_ids, step)  # a call each: its temporary is gone before the next is taken


def _copy_runs(src: Tensor, dst: Tensor, runs: Sequence[tuple[int, int, int]]) -> None:
    """One copy for each run of neighbouring blocks."""
    with torch.inference_mode(False):
        for src_block, dst_block, count in runs:
            dst.narrow(0, dst_block, count).copy_(src.narrow(0, src_block, count))


def _copy_group(src: Tensor, dst: Tensor, src_ids: Tensor, dst_ids: Tensor, step: int) -> None:
    """Copy ``step`` blocks at a time, by way of memory that is taken before: a device may wait to make a new tensor."""
    num_pairs = src_ids.numel()
    with torch.inference_mode(False):
        taken = torch.empty((min(step, num_pairs), *src.shape[1:]), dtype=src.dtype, device=src.device)
    for start in range(0, num_pairs, step):
        some = taken[: min(step, num_pairs - start)]
        torch.index_select(src, 0, src_ids[start : start + step], out=some)
        dst.index_copy_(0, dst_ids[start : start + step], some)


def copy_words(context: CopyContext) -> dict[int, torch.dtype]:
    """The word dtypes that both sides' backends can move, by size."""
    return copy_words_of(context.src_backend, context.dst_backend)


def copy_words_of(*backends: object) -> dict[int, torch.dtype]:
    """The word dtypes that all of ``backends`` can move, by size."""
    words = dict(TorchBackend.words)
    for backend in backends:
        if isinstance(backend, TorchBackend):
            words = {size: dtype for size, dtype in words.items() if backend.words.get(size) == dtype}
    return words


def check_device_ids(ids: object, device: torch.device) -> None:
    """Refuse what no copy can read: all that the host can see without waiting for the device.

    Raises
    ------
    TypeError
        When ``ids`` is no int64 tensor.
    BlockPairsError
        When its shape is not ``(2, n)``, or it lives on another device.
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64:
        found = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"device-resident ids must be an int64 tensor of shape (2, n), not {found}")
    if ids.dim() != 2 or ids.shape[0] != 2:
        raise BlockPairsError(
            f"device-resident ids have shape {tuple(ids.shape)}; expected (2, n): sources and destinations"
        )
    if ids.device != device:
        raise BlockPairsError(f"the ids are on {ids.device}, but the cache is on {device}; move them there first")
