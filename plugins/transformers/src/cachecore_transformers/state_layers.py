"""Cache layers with states in slots: linear attention, short convolutions, and hybrids with attention."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from cachecore.errors import EngineStateError, PlanError
from cachecore_transformers.calls import READ, WRITTEN
from cachecore_transformers.layers import BlockLayer, SlidingBlockLayer
from cachecore_transformers.models import LayerCache
from cachecore_transformers.sequences import Sequences
from cachecore_transformers.shapes import state_name

__all__ = ["HybridLayer", "SlidingHybridLayer", "StateLayer"]


class StateLayer(LinearAttentionCacheLayerMixin):
    """Convolution and recurrent states of every sequence, each in the sequence's slot."""

    is_compileable = False
    is_croppable = False
    record_past = False

    def __init__(self, sequences: Sequences, cache: LayerCache) -> None:
        self.cache = cache
        self.sequences = sequences
        names = {state.name for state in cache.states}
        self.number_of_states = sum(state_name("conv", index) in names for index in range(len(names)))
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the slots exist since the pool was opened."""

    @property
    def has_previous_state(self) -> dict[int, bool]:  # type: ignore[override]  # no attribute to be set, but computed
        """Whether the states hold any tokens, for each state index."""
        return dict.fromkeys(range(self.number_of_states), bool(self.sequences.length))

    @property
    def conv_states(self) -> dict[int, torch.Tensor | None]:  # type: ignore[override]  # as above
        """A copy of the convolution states, for inspection."""
        return {index: self._copied("conv", index) for index in range(self.number_of_states)}

    @property
    def recurrent_states(self) -> dict[int, torch.Tensor | None]:  # type: ignore[override]  # as above
        """A copy of the recurrent states, for inspection."""
        return {index: self._copied("recurrent", index) for index in range(self.number_of_states)}

    def fetch(self, kind: str, index: int) -> torch.Tensor | None:
        """The state that earlier tokens left, to read and to write in place; None where there were none."""
        sequences, name = self.sequences, state_name(kind, index)
        if not self._has(name):
            return None
        sequences.close_whole(self.cache.layer, name, READ)
        if not sequences.length:
            return None
        sequences.enter(self.cache.layer, name, sequences.num_sequences, stage=READ)
        state = sequences.states.bind(name)
        sequences.written()
        return state

    def update_conv_state(
        self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Keep the last inputs of a convolution; return them behind those of the tokens before.

        Takes ``(sequences, channels, tokens)``. The first ones are padded with zeros to the kernel's size.
        """
        name = state_name("conv", state_idx)
        batch, _, tokens = conv_states.shape
        self.sequences.enter(self.cache.layer, name, batch, at_least=tokens)
        state = self._bind(name, conv_states, conv_states.shape[:-1])
        kernel = state.shape[-1]
        if self.sequences.length:
            seen = torch.cat([state, conv_states], dim=-1)
        else:
            seen = torch.nn.functional.pad(conv_states, (kernel - tokens, 0)) if tokens < kernel else conv_states
        state.copy_(seen[..., -kernel:])
        self.sequences.written()
        return seen

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **kwargs: Any) -> torch.Tensor:
        """Keep the state after the new tokens, ``(sequences, *shape)``."""
        name = state_name("recurrent", state_idx)
        self.sequences.enter(self.cache.layer, name, len(recurrent_states), stage=WRITTEN)
        state = self._bind(name, recurrent_states, recurrent_states.shape)
        state.copy_(recurrent_states)
        self.sequences.written()
        return state

    def activate_past_recording(self) -> None:
        """Refused: a state is overwritten by every token."""
        raise EngineStateError(
            f"layer {self.cache.layer} keeps states, which cannot take tokens back; generate without an assistant and "
            "without prompt lookup, or fork() the cache before tokens on trial"
        )

    def _has(self, name: str) -> bool:
        return any(state.name == name for state in self.cache.states)

    def _bind(self, name: str, handed: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        if self._has(name):
            state = self.sequences.states.bind(name)
            if (state.shape[: len(shape)], state.dtype, state.device) == (shape, handed.dtype, handed.device):
                return state
            planned = f"{tuple(state.shape)} {state.dtype} on {state.device}"
        else:
            planned = "none"
        raise PlanError(
            f"layer {self.cache.layer}: the model hands {name} of {tuple(handed.shape)} {handed.dtype} on "
            f"{handed.device}, but the plan has {planned}; plan with the model's dtype and device, and with "
            "state_shapes=measure_state_shapes(model) where its configuration does not tell the shapes",
            layer=self.cache.layer,
        )

    def _copied(self, kind: str, index: int) -> torch.Tensor | None:
        name = state_name(kind, index)
        if not self._has(name) or not self.sequences.length:
            return None
        return self.sequences.copy_of_state(self.cache.layer, name)


class HybridLayer(StateLayer, BlockLayer):  # type: ignore[no-untyped-call]  # as above
    """States beside full attention, as in Falcon-H1."""

    def __init__(self, sequences: Sequences, cache: LayerCache) -> None:
        BlockLayer.__init__(self, sequences, cache)
        StateLayer.__init__(self, sequences, cache)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do, for blocks and for slots."""

    def get_max_length(self) -> int:
        """No maximum but the pool's blocks."""
        return BlockLayer.get_max_length(self)


class SlidingHybridLayer(StateLayer, SlidingBlockLayer):  # type: ignore[no-untyped-call]  # as above
    """States beside attention in a window."""

    record_past = False

    def __init__(self, sequences: Sequences, cache: LayerCache) -> None:
        SlidingBlockLayer.__init__(self, sequences, cache)
        StateLayer.__init__(self, sequences, cache)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do, for blocks and for slots."""

    def get_max_length(self) -> int:
        """The window."""
        return SlidingBlockLayer.get_max_length(self)
