"""Swaps: memory copies between a device and its mirror on the host, on a stream for loads and one for stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from cachecore_torch_default import completion_of_stream
from cachecore_torch_default.tensors import synchronize

from cachecore import COMPLETED, BlockCacheCopy, BlockPairs, Completion, CopyContext
from cachecore_ascend_dlinfer.backend import DlinferBackend
from cachecore_ascend_dlinfer.batch_copy import batch_copies
from cachecore_ascend_dlinfer.runs import BlockRuns, flat_pools

__all__ = ["MirrorSwap"]


class MirrorSwap(BlockCacheCopy):
    """One memory copy for each run of neighbouring blocks, row and tensor; no kernel and no workspace.

    Ordered after what the caller's stream has queued; the caller's stream does not wait unless told to.
    Without page-locked memory the copies wait for one another and are done when the call returns.
    """

    def __init__(self, context: CopyContext) -> None:
        self._host_is_src = context.src.device.type == "cpu"
        backend: DlinferBackend = context.dst_backend if self._host_is_src else context.src_backend
        device = context.dst if self._host_is_src else context.src
        self._device: torch.device = device.pools[0].device if device.pools else torch.device("cpu")
        self._backend = backend
        self._async = backend.capabilities()["async_copy"] is None
        pools = flat_pools(context.src.pools), flat_pools(context.dst.pools)
        self._copies = batch_copies(*pools, ladder=backend.vendor.batch_copy, host_is_src=self._host_is_src)
        self.path = f"dlinfer:{'load' if self._host_is_src else 'store'}:{self._copies.name}"
        self._runs = BlockRuns(context)

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Queue the copies of whole blocks."""
        if self._device.type == "cpu":  # there is no pool, so there are no bytes
            return COMPLETED
        module: Any = torch.get_device_module(self._device)
        stream = self._backend.side_stream(self._device, "load" if self._host_is_src else "store")
        stream.wait_stream(module.current_stream(self._device))
        for completion in after:
            completion.wait(stream)
        with module.stream(stream):
            held = self._copies(self._runs.of(pairs))
        if not self._async:
            synchronize(self._device)
            return COMPLETED
        return completion_of_stream(self._device, stream, held=held)
