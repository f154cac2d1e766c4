"""Many memory copies in one direction, in as few calls as the installed libraries allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["BatchCopy", "Run", "batch_copies", "loop_copy"]


class Run(NamedTuple):
    """``nbytes`` from one byte of a source pool to one of a destination pool."""

    src_pool: int
    src_at: int
    dst_pool: int
    dst_at: int
    nbytes: int


class BatchCopy:
    """Copies runs on the current stream; returns what must live until they are done."""

    def __init__(self, name: str, copy: Callable[[Sequence[Run]], tuple[Tensor, ...]]) -> None:
        self.name = name
        self._copy = copy

    def __call__(self, runs: Sequence[Run]) -> tuple[Tensor, ...]:
        """Queue all ``runs``, a bounded number a call."""
        held: tuple[Tensor, ...] = ()
        for start in range(0, len(runs), _MOST_A_CALL):
            held += self._copy(runs[start : start + _MOST_A_CALL])
        return held


_MOST_A_CALL = 4096

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 0, 1
"""Directions of vllm-ascend's operator. Source: its csrc/torch_binding.cpp."""


def batch_copies(
    src: Sequence[Tensor], dst: Sequence[Tensor], *, ladder: Sequence[str], host_is_src: bool
) -> BatchCopy:
    """The first rung of ``ladder`` that is here, a loop at its end.

    ``src`` and ``dst`` are flat byte tensors, one side the host's.
    """
    makers = {"address-table": _address_table, "foreach": _foreach}
    for name in ladder:
        copy = makers[name](src, dst, host_is_src) if name in makers else None
        if copy is not None:
            return BatchCopy(name, copy)
    return BatchCopy("loop", loop_copy(src, dst))


def loop_copy(src: Sequence[Tensor], dst: Sequence[Tensor]) -> Callable[[Sequence[Run]], tuple[Tensor, ...]]:
    """One call a run."""

    def copy(runs: Sequence[Run]) -> tuple[Tensor, ...]:
        for target, source in zip(*_slices(src, dst, runs), strict=True):
            target.copy_(source, non_blocking=True)
        return ()

    return copy


def _address_table(src: Sequence[Tensor], dst: Sequence[Tensor], host_is_src: bool) -> Any:
    """vllm-ascend's operator over aclrtMemcpyBatchAsync (CANN 8.5), where its library is loaded.

    It takes addresses of page-locked memory: any other is refused by the runtime.
    """
    namespace, host = torch.ops._C_ascend, src if host_is_src else dst
    if not hasattr(namespace, "swap_blocks_batch") or not all(pool.is_pinned() for pool in host if pool.numel()):
        return None
    operator = namespace.swap_blocks_batch
    direction = _HOST_TO_DEVICE if host_is_src else _DEVICE_TO_HOST
    src_bases, dst_bases = [pool.data_ptr() for pool in src], [pool.data_ptr() for pool in dst]

    def copy(runs: Sequence[Run]) -> tuple[Tensor, ...]:
        table = torch.tensor(
            [
                [src_bases[run.src_pool] + run.src_at for run in runs],
                [dst_bases[run.dst_pool] + run.dst_at for run in runs],
                [run.nbytes for run in runs],
            ],
            dtype=torch.int64,
        )
        operator(table[0], table[1], table[2], direction)
        return (table,)  # the driver may read the table after the call

    return copy


def _foreach(src: Sequence[Tensor], dst: Sequence[Tensor], host_is_src: bool) -> Any:
    """torch_npu's ``_foreach_copy_`` batches where chip and CANN allow, and all sources are on one side."""

    def copy(runs: Sequence[Run]) -> tuple[Tensor, ...]:
        torch._foreach_copy_(*_slices(src, dst, runs), non_blocking=True)
        return ()

    return copy


def _slices(src: Sequence[Tensor], dst: Sequence[Tensor], runs: Sequence[Run]) -> tuple[list[Tensor], list[Tensor]]:
    """Targets and sources."""
    return (
        [dst[run.dst_pool][run.dst_at : run.dst_at + run.nbytes] for run in runs],
        [src[run.src_pool][run.src_at : run.src_at + run.nbytes] for run in runs],
    )
