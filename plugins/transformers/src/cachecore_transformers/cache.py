"""``CachecoreCache``: a transformers ``Cache`` whose layers live in the blocks and slots of a pool."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from transformers.cache_utils import Cache

from cachecore import BlockPairs, PlanError
from cachecore.meaning import not_negative, several, whole
from cachecore_transformers.forks import fork_into, select
from cachecore_transformers.handed import AttentionPath
from cachecore_transformers.layer_kinds import make_layers
from cachecore_transformers.layers import BlockLayer
from cachecore_transformers.pool import CachePool
from cachecore_transformers.sequences import Sequences
from cachecore_transformers.state_layers import StateLayer
from cachecore_transformers.swap import swap_in, swap_out

__all__ = ["CachecoreCache"]


class CachecoreCache(Cache):
    """Pass it as ``past_key_values`` (``cache_params`` for Mamba) to a model or to ``generate()``.

    Everything that changes the batch works on block tables: beam search and parallel sampling share
    full blocks and copy the one that is not full, and states. Release it (or leave its ``with`` block)
    to give the blocks back; a cache that is garbage-collected does so too.

    >>> with open_pool(model.config, max_tokens=512) as pool, CachecoreCache(pool) as cache:  # doctest: +SKIP
    ...     model.generate(**inputs, past_key_values=cache)
    """

    def __init__(self, pool: CachePool) -> None:
        if not isinstance(pool, CachePool):
            raise TypeError(f"pool must be a CachePool, as open_pool() makes it, not {pool!r}")
        self.pool = pool
        self.sequences = Sequences(pool)
        layers = make_layers(self.sequences, pool.layers)
        super().__init__(layers=layers)
        self._finalizer = weakref.finalize(self, self.sequences.clear)
        self._finalizer.atexit = False

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Continue with the beams ``beam_idx``; several may continue one."""
        self._select(beam_idx, "reorder_cache()")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the sequences ``indices``."""
        self._select(indices, "batch_select_indices()")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Fork every sequence into ``repeats`` neighbours."""
        times = not_negative(repeats, "batch_repeat_interleave(): repeats")
        if self.sequences.num_sequences:
            everyone = torch.arange(self.sequences.num_sequences)
            self._select(everyone.repeat_interleave(times), "batch_repeat_interleave()")

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens (zero or negative), then what lies behind the windows."""
        tokens = whole(tokens_to_remove, "crop(): tokens_to_remove")
        if tokens > 0:
            raise PlanError(
                f"crop() takes zero or a negative number of tokens to remove, not {tokens}; "
                "pass -n to remove the last n"
            )
        self.sequences.crop(-tokens)

    def reset(self) -> None:
        """Release every block; the cache is empty and can be used again."""
        self.sequences.clear()

    @property
    def batch_size(self) -> int:
        """Sequences held, or -1 while empty."""
        return self.sequences.num_sequences or -1

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """A layer's convolution state to read and to write in place, or None before its first tokens."""
        return self._state_layer(layer_idx).fetch("conv", state_idx)

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        """A layer's recurrent state to read and to write in place, or None before its first tokens."""
        return self._state_layer(layer_idx).fetch("recurrent", state_idx)

    @property
    def is_linear(self) -> list[bool]:
        """Which layers keep states, and no keys and values of every token."""
        return [isinstance(layer, StateLayer) and layer.cache.kind != "hybrid" for layer in self.layers]

    def _state_layer(self, layer: int) -> StateLayer:
        found = self.layers[layer]
        if not isinstance(found, StateLayer):
            raise ValueError(f"layer {layer} is a {type(found).__name__}, which keeps no states")
        return found

    def fork(self) -> CachecoreCache:
        """Another cache with the same sequences, for example to continue one prompt in two ways.

        Full blocks are shared, the ones that are not full are copied. ``copy.deepcopy`` does the same.
        """
        other = CachecoreCache(self.pool)
        fork_into(self.sequences, other.sequences)
        for layer, twin in zip(self.layers, other.layers, strict=True):
            if isinstance(layer, BlockLayer) and isinstance(twin, BlockLayer):
                twin.reader.config, twin.reader.asks = layer.reader.config, layer.reader.asks
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> CachecoreCache:
        return self.fork()

    def rollback(self) -> None:
        """Forget the tokens of a forward call that was interrupted; call it before repeating the call."""
        self.sequences.rollback()

    def swap_out(self, sequences: Iterable[int] | None = None) -> dict[str, BlockPairs]:
        """Move sequences (default: all) to the host tier and free their device blocks.

        Returns ``{group: pairs of (device block, host block)}``. Until :meth:`swap_in` the model cannot
        be called with this cache.
        """
        return swap_out(self.sequences, sequences)

    def swap_in(self, sequences: Iterable[int] | None = None) -> dict[str, BlockPairs]:
        """Move sequences (default: all that are out) back into free device blocks.

        Returns ``{group: pairs of (host block, device block)}``.
        """
        return swap_in(self.sequences, sequences)

    def attention_paths(self) -> list[AttentionPath]:
        """How each layer with keys and values reads them in steps of one token: in the blocks, or gathered, and why."""
        return [layer.reader.path(layer.cache.layer) for layer in self.layers if isinstance(layer, BlockLayer)]

    def release(self) -> None:
        """Give every block back. The cache is empty afterwards."""
        self.sequences.clear()

    def __enter__(self) -> CachecoreCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _select(self, indices: torch.Tensor, what: str) -> None:
        held = self.sequences.num_sequences
        if not held:
            return
        chosen = indices if isinstance(indices, torch.Tensor) else torch.tensor(several(indices, f"{what}: indices"))
        if chosen.numel() and (chosen.is_floating_point() or chosen.is_complex()):
            raise TypeError(f"{what}: indices must be integers or booleans, not {chosen.dtype}")
        listed = chosen.nonzero().flatten().tolist() if chosen.dtype == torch.bool else chosen.flatten().tolist()
        select(self.sequences, [index + held if -held <= index < 0 else index for index in listed], what)
