"""Cache layers whose keys and values live in blocks."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from cachecore.errors import PlanError
from cachecore_transformers.models import LayerCache
from cachecore_transformers.places import Places
from cachecore_transformers.sequences import Sequences

__all__ = ["BlockLayer", "SlidingBlockLayer"]


class BlockLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    """Full attention, or an MLA latent: every token is kept.

    The tensors handed to attention are contiguous ``(sequences, heads, tokens, dim)``, as those of
    transformers' own ``DynamicLayer``: equal bytes in equal strides give bitwise equal logits.
    """

    is_sliding = False
    is_croppable = True

    def __init__(self, sequences: Sequences, cache: LayerCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        if cache.shape is None or cache.group is None:
            raise PlanError(f"layer {cache.layer} ({cache.kind}) keeps no keys and values of its own")
        self.cache = cache
        self.shape = cache.shape
        self.group = cache.group
        self.sequences = sequences
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the blocks exist since the pool was opened."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new tokens' keys and values; return those of every token that a query may see.

        The tokens are counted once the last layer has seen them. Gradients do not flow through the blocks.
        """
        keys, values = self._views()
        self._check(key_states, keys, "keys")
        self._check(value_states, values, "values")
        places = self.sequences.enter(self.cache.layer, self.group, key_states.shape[0], key_states.shape[2])
        _write(keys, places, key_states)
        _write(values, places, value_states)
        seen = _read(keys, places, len(key_states)), _read(values, places, len(value_states))
        self.sequences.leave()
        return seen

    def _views(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row views as ``(entries, [pages,] tokens, heads, dim)``, aliasing the pool."""
        caches = self.sequences.pool.engine.block_caches
        keys = caches.layer("k_cache", self.cache.layer)
        if self.shape.latent:  # latent and rotary part stand side by side in one row
            return keys[..., : self.shape.k_dim], keys[..., self.shape.k_dim :]
        values = caches.layer("v_cache", self.cache.layer)
        order = self.sequences.pool.groups[self.group].page_order
        return (keys, values) if order is None else (keys.permute(order), values.permute(order))

    def _check(self, states: torch.Tensor, view: torch.Tensor, what: str) -> None:
        handed = states.shape[1], states.shape[3], states.dtype, states.device
        planned = view.shape[-2], view.shape[-1], view.dtype, view.device
        if handed == planned:
            return
        raise PlanError(
            f"layer {self.cache.layer}: the model hands {what} of {_named(*handed)}, but the plan has "
            f"{_named(*planned)}; plan with the model's dtype and device, and with "
            "kv_shapes=measure_kv_shapes(model) where its configuration does not tell the shapes",
            layer=self.cache.layer,
        )

    def get_seq_length(self) -> int:
        """Tokens that this layer has seen."""
        return self.sequences.layer_length(self.cache.layer)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of what ``update`` will return for ``query_length`` tokens, and the position where it starts."""
        span = self.sequences.tables[self.group].span(self.get_seq_length(), query_length)
        return span.stop - span.visible, span.visible

    def get_max_length(self) -> int:
        """No maximum but the pool's blocks."""
        return -1


class SlidingBlockLayer(BlockLayer):  # type: ignore[no-untyped-call]  # as above
    """Sliding-window or chunked attention: blocks wholly behind the window are released.

    After :meth:`activate_past_recording` they stay until ``crop``, so that tokens can be taken back.
    """

    is_sliding = True

    @property
    def record_past(self) -> bool:
        """Whether blocks behind the window are kept until ``crop``."""
        return self.sequences.record_past

    @record_past.setter
    def record_past(self, value: bool) -> None:
        self.sequences.record_past = value

    def activate_past_recording(self) -> None:
        """Keep what falls out of the window until ``crop`` is called."""
        self.sequences.record_past = True

    def get_max_length(self) -> int:
        """The window."""
        return self.cache.window or -1


def _write(view: torch.Tensor, places: Places, states: torch.Tensor) -> None:
    tokens = states.detach().transpose(1, 2).reshape(-1, *view.shape[-2:])
    view.index_put_(places.write, tokens)


def _read(view: torch.Tensor, places: Places, num_sequences: int) -> torch.Tensor:
    num_heads, dim = view.shape[-2:]
    gathered = view.index_select(0, places.read).view(num_sequences, -1, num_heads, dim)
    seen = gathered[:, places.skip : places.skip + places.length].transpose(1, 2)
    # Not contiguous(), which leaves the stride of an axis of one head as it is.
    return torch.empty(seen.shape, dtype=seen.dtype, device=seen.device).copy_(seen)


def _named(num_heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> str:
    return f"{num_heads} heads x {dim} {str(dtype).removeprefix('torch.')} on {device}"
