"""Launches of paged decode attention, prepared once for operands of one form: a step repeats them layer by layer."""

from __future__ import annotations

from functools import cache
from math import e, log2
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from cachecore_cuda_triton.kernels_attention import attend, combine
from cachecore_cuda_triton.launch import current_stream, on_device

__all__ = ["DecodeTiling", "Form", "PreparedAttention", "PreparedKernel", "form_of", "form_of_ids", "row_strides"]

_MAX_SPLITS = 64
"""Shares of one sequence; more would cost more to add up than they save."""

_SHARE_TOKENS = 256
"""Tokens of a share at least, where there are so many: a program's start-up must be worth it."""

_LOG2_E = log2(e)


class DecodeTiling(NamedTuple):
    """Tokens that a program reads at once, its warps, and how many tiles are on their way."""

    tile: int
    num_warps: int
    num_stages: int


class Form(NamedTuple):
    """What a kernel depends on beside the shapes and strides of its operands."""

    pages_per_block: int
    has_starts: bool
    has_mask: bool
    tiling: DecodeTiling | None


def form_of(tensor: Tensor) -> tuple[object, ...]:
    """What checks and compiled kernels depend on."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % 16


def form_of_ids(ids: Tensor) -> tuple[object, ...]:
    """The width of a table changes as sequences grow, and nothing that is compiled depends on it."""
    return ids.shape[:1], ids.dim(), ids.stride()[-1:], ids.shape[-1:] == (1,), ids.dtype, ids.device


class PreparedKernel:
    """A kernel with its constants, compiled when it is first called.

    A launch through the decorator costs more than all the rest of a call, so the compiled kernel is called
    instead; its arguments differ in addresses and in counts for which it is not specialised.
    """

    def __init__(self, kernel: Any, device: torch.device, constants: dict[str, Any], **options: int) -> None:
        self._kernel = kernel
        self._device = device
        self._constants = constants
        self._values = tuple(constants.values())
        self._options = options
        self._compiled: Any = None

    def __call__(self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], numbers: tuple[float, ...]) -> None:
        """Queue it on the current stream: tensors first, then numbers, then the constants."""
        if self._device.type != "cuda":
            self._kernel[grid](*tensors, *numbers, **self._constants, **self._options)
            return
        with on_device(self._device):
            if self._compiled is None:
                self._compiled = self._kernel.warmup(*tensors, *numbers, grid=grid, **self._constants, **self._options)
            addresses = [tensor.data_ptr() for tensor in tensors]
            self._compiled[grid](*addresses, *numbers, *self._values, stream=current_stream(self._device))


class PreparedAttention:
    """One way to launch, for every call whose operands have one form."""

    def __init__(self, query: Tensor, key_row: Tensor, value_row: Tensor, out: Tensor, form: Form) -> None:
        self._device = query.device
        self._num_kv_heads = key_row.shape[-2]
        num_heads, key_dim = query.shape[1:]
        value_dim = value_row.shape[-1]
        page_size = key_row.shape[-3]
        self._block_size = page_size * (key_row.shape[1] if key_row.dim() == 5 else form.pages_per_block)
        self._tiling = form.tiling or _tiling(max(key_dim, value_dim) * key_row.element_size())
        self._strides = (
            *(query.stride(0), query.stride(1), out.stride(0), out.stride(1)),
            *row_strides(key_row, form.pages_per_block),
            *row_strides(value_row, form.pages_per_block),
        )
        group = num_heads // self._num_kv_heads
        self._constants = {
            "GROUP": group,
            "GROUP_PAD": max(16, triton.next_power_of_2(group)),
            "KEY_DIM": key_dim,
            "KEY_PAD": max(16, triton.next_power_of_2(key_dim)),
            "VALUE_DIM": value_dim,
            "VALUE_PAD": max(16, triton.next_power_of_2(value_dim)),
            "BLOCK_SIZE": self._block_size,
            "PAGE_SIZE": page_size,
            "TILE": self._tiling.tile,
            "HAS_STARTS": form.has_starts,
            "HAS_MASK": form.has_mask,
            "SPLIT": False,
            "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
            "INTERPRETED": query.device.type != "cuda",
        }
        self._kernels: dict[int, PreparedKernel] = {}

    def num_splits(self, block_table: Tensor) -> int:
        """Enough programs for two rounds over the device, but no share of fewer tokens than are worth it."""
        num_seqs, max_blocks = block_table.shape
        wanted = -(-2 * _num_multiprocessors(self._device) // (num_seqs * self._num_kv_heads))
        return max(1, min(wanted, _MAX_SPLITS, -(-max_blocks * self._block_size // _SHARE_TOKENS)))

    def run(
        self, operands: tuple[Tensor, ...], ids: tuple[Tensor, Tensor, Tensor, Tensor], scale: float, num_splits: int
    ) -> None:
        """Queue it. ``operands``: query, keys, values, out; ``ids``: table, starts, stops, mask."""
        out = operands[3]
        num_seqs, num_heads, value_dim = out.shape
        partial = partial_lse = out  # never touched without splits
        splits = num_splits > 1
        if splits:
            shares = (num_seqs, num_heads, num_splits)
            partial = torch.empty((*shares, value_dim), dtype=torch.float32, device=self._device)
            partial_lse = torch.empty(shares, dtype=torch.float32, device=self._device)
        counts = (scale * _LOG2_E, num_splits, ids[0].stride(0), ids[3].stride(0))
        self._attend(splits)(
            (num_seqs, self._num_kv_heads, num_splits),
            (*operands[:3], *ids, out, partial, partial_lse),
            (*counts, *self._strides),
        )
        if splits:
            self._combine(num_splits)(
                (num_seqs, num_heads, 1),
                (partial, partial_lse, out),
                (num_splits, *self._strides[2:4]),
            )

    def _attend(self, splits: bool) -> PreparedKernel:
        found = self._kernels.get(splits)
        if found is None:
            constants = {**self._constants, "SPLIT": splits}
            options = {"num_warps": self._tiling.num_warps, "num_stages": self._tiling.num_stages}
            found = self._kernels[splits] = PreparedKernel(attend, self._device, constants, **options)
        return found

    def _combine(self, num_splits: int) -> PreparedKernel:
        padded = triton.next_power_of_2(num_splits)  # 2 or more, so no key of the other kernel
        found = self._kernels.get(padded)
        if found is None:
            value_dim = self._constants["VALUE_DIM"]
            constants = {
                "VALUE_DIM": value_dim,
                "VALUE_PAD": triton.next_power_of_2(value_dim),
                "SPLITS_PAD": padded,
            }
            found = self._kernels[padded] = PreparedKernel(combine, self._device, constants, num_warps=4)
        return found


def row_strides(row: Tensor, pages_per_block: int) -> tuple[int, int, int, int]:
    """Elements between two blocks, pages, tokens and heads of a row view with or without an axis for pages."""
    if row.dim() == 5:
        return row.stride(0), row.stride(1), row.stride(2), row.stride(3)
    return row.stride(0) * pages_per_block, row.stride(0), row.stride(1), row.stride(2)


def _tiling(row_nbytes: int) -> DecodeTiling:
    """Measured best for heads of 256 bytes (``NOTES.md``); for longer ones what fits every device since sm_80."""
    if row_nbytes <= 256:
        return DecodeTiling(128, 4, 2)
    return DecodeTiling(32, 4, 2)


@cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
