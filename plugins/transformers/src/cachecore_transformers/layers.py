"""Cache layers whose keys and values live in blocks."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from cachecore.errors import PlanError
from cachecore_transformers.handed import Handed, PagedStep, Reader, mark
from cachecore_transformers.models import LayerCache
from cachecore_transformers.paged import PagedKernels, find_kernels
from cachecore_transformers.places import read, write
from cachecore_transformers.pool import Group
from cachecore_transformers.sequences import Sequences

__all__ = ["BlockLayer", "IndexedBlockLayer", "SlidingBlockLayer", "append_entries", "check_states"]


class BlockLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    """Full attention, or an MLA latent: every token is kept.

    The tensors handed to attention are contiguous ``(sequences, heads, tokens, dim)``, as those of
    transformers' own ``DynamicLayer``: equal bytes in equal strides give bitwise equal logits.
    """

    is_sliding = False
    is_croppable = True
    not_paged: str | None = None
    """Why attention of this kind of layer is not computed in the blocks; None where it is."""

    def __init__(self, sequences: Sequences, cache: LayerCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        if cache.shape is None or cache.group is None:
            raise PlanError(f"layer {cache.layer} ({cache.kind}) keeps no keys and values of its own")
        if cache.shape.latent:
            self.not_paged = "a latent is expanded to heads before attention"
        self.cache = cache
        self.shape = cache.shape
        self.group = cache.group
        self.sequences = sequences
        group = sequences.pool.groups[cache.group]
        self.page_order = group.page_order if isinstance(group, Group) else None
        self.reader = Reader()
        self.is_initialized = True
        self._kernels: PagedKernels | str | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the blocks exist since the pool was opened."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new tokens' keys and values; return those of every token that a query may see.

        Where attention will read the blocks (``attention_paths()`` of the cache), return the new ones alone,
        marked. The tokens are counted once the last layer has seen them. Gradients do not flow through the blocks.
        """
        sequences = self.sequences
        rows = keys, values = self._views()
        check_states(self.cache.layer, key_states, keys, "keys")
        check_states(self.cache.layer, value_states, values, "values")
        sequences.steps.check_read()
        is_step = key_states.shape[2] == 1
        kernels = self._step_kernels(keys) if is_step else ""
        sequences.enter(self.cache.layer, "kv", key_states.shape[0], key_states.shape[2])
        if not isinstance(kernels, str):
            step = sequences.steps.find(self.group, sequences.tables[self.group], sequences.length)
            kernels.store(rows, key_states, value_states, step)
            sequences.leave()
            sequences.steps.left_unread(self.cache.layer, self.reader)
            return mark(key_states, value_states, Handed(self.reader, PagedStep(kernels, rows, step)))
        if is_step:
            self.reader.gathered(kernels)
        places = sequences.places(self.group)
        write(keys, places, key_states)
        write(values, places, value_states)
        seen = read(keys, places, len(key_states)), read(values, places, len(value_states))
        sequences.leave()
        return mark(*seen, Handed(self.reader, None))

    def _step_kernels(self, keys: torch.Tensor) -> PagedKernels | str:
        """What computes this layer's next step in the blocks, or why nothing does."""
        if self._kernels is None:
            self._kernels = self.not_paged or find_kernels(self.sequences.pool, self.group, keys.dtype)
        if isinstance(self._kernels, str):
            return self._kernels
        return self.reader.why_not() or self._kernels

    def _views(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Row views as ``(entries, [pages,] tokens, heads, dim)``, aliasing the pool."""
        caches = self.sequences.pool.engine.block_caches
        keys = caches.layer("k_cache", self.cache.layer)
        if self.shape.latent:  # latent and rotary part stand side by side in one row
            return keys[..., : self.shape.k_dim], keys[..., self.shape.k_dim :]
        values = caches.layer("v_cache", self.cache.layer)
        order = self.page_order
        return (keys, values) if order is None else (keys.permute(order), values.permute(order))

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


class IndexedBlockLayer(BlockLayer):  # type: ignore[no-untyped-call]  # as above
    """Sparse attention: keys and values (a latent, in DeepSeek-V3.2), and keys by which an indexer selects tokens.

    Both have the same blocks.
    """

    not_paged = "sparse attention selects tokens, which the kernel does not"

    @property
    def indexer_position_ids(self) -> None:
        """None: positions are not kept."""
        return None

    @indexer_position_ids.setter
    def indexer_position_ids(self, value: torch.Tensor | None) -> None:
        if value is not None:
            raise PlanError(
                f"layer {self.cache.layer}: the model keeps positions beside its indexer keys, which have no place in "
                "blocks; run it with transformers' own cache",
                layer=self.cache.layer,
            )

    def update_index(self, idx_k: torch.Tensor) -> torch.Tensor:
        """As :meth:`update_indexer`, with one head: ``(sequences, 1, tokens, dim)``. MiniMax-M3 calls it so."""
        return self.update_indexer(idx_k.squeeze(1)).unsqueeze(1)

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Store the new tokens' indexer keys ``(sequences, tokens, dim)``; return those of all tokens."""
        if not self.cache.entries:
            raise PlanError(
                f"layer {self.cache.layer}: the model hands indexer keys, but its configuration says that this layer "
                "shares an earlier layer's selection",
                layer=self.cache.layer,
            )
        return append_entries(self.sequences, self.cache, 0, indexer_key_states, indexer_key_states.shape[1])


def append_entries(
    sequences: Sequences, cache: LayerCache, number: int, states: torch.Tensor, tokens: int | None = None
) -> torch.Tensor:
    """Store the new entries ``(sequences, entries, width)`` of a layer; return all of them.

    ``tokens`` are those of the forward call, where the caller knows.
    """
    entry = cache.entries[number]
    view = sequences.pool.engine.block_caches.layer(entry.name, cache.layer).unsqueeze(-2)
    states = states.unsqueeze(1)
    check_states(cache.layer, states, view, entry.name)
    sequences.enter(cache.layer, entry.name, len(states), tokens)
    places = sequences.places(entry.group)
    if states.shape[2] * len(states) != len(places.write[0]):
        raise PlanError(
            f"layer {cache.layer}: the model hands {states.shape[2]} entries of {entry.name} a sequence, but "
            f"{len(places.write[0]) // len(states)} are due, one every {entry.rate} tokens",
            layer=cache.layer,
        )
    write(view, places, states)
    seen = read(view, places, len(states)).squeeze(1)
    sequences.leave()
    return seen


def check_states(layer: int, states: torch.Tensor, view: torch.Tensor, what: str) -> None:
    """Raise :class:`~cachecore.PlanError` when the model hands something else than was planned."""
    handed = states.shape[1], states.shape[3], states.dtype, states.device
    planned = view.shape[-2], view.shape[-1], view.dtype, view.device
    if handed == planned:
        return
    raise PlanError(
        f"layer {layer}: the model hands {what} of {_named(*handed)}, but the plan has "
        f"{_named(*planned)}; plan with the model's dtype and device, and with "
        "kv_shapes=measure_kv_shapes(model) where its configuration does not tell the shapes",
        layer=layer,
    )


def _named(num_heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> str:
    return f"{num_heads} heads x {dim} {str(dtype).removeprefix('torch.')} on {device}"
