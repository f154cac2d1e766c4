"""Cache layers of DeepSeek-V4: a window whose keys are the values, and compressed entries of everything before."""

from __future__ import annotations

from typing import Any

import torch

from cachecore.errors import EngineStateError, PlanError
from cachecore_transformers.layers import SlidingBlockLayer, append_entries, check_states
from cachecore_transformers.places import read, write

__all__ = ["CompressedLayer", "SharedKvLayer"]


class SharedKvLayer(SlidingBlockLayer):  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    """Attention in a window with one head, whose keys are its values: they are kept once."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new tokens' keys; return those of every token that a query may see, twice."""
        keys, _ = self._views()
        check_states(self.cache.layer, key_states, keys, "keys")
        self.sequences.enter(self.cache.layer, "kv", key_states.shape[0], key_states.shape[2])
        places = self.sequences.places(self.group)
        write(keys, places, key_states)
        seen = read(keys, places, len(key_states))
        self.sequences.leave()
        return seen, seen


class CompressedLayer(SharedKvLayer):  # type: ignore[no-untyped-call]  # as above
    """Beside the window, one entry every ``compress_rate`` tokens, in blocks of a group of its own.

    The tokens that do not fill an entry yet are states of the sequence: a buffer, and for sparse
    attention, whose entries overlap, what the last full one left. How much of a buffer is filled
    follows from the sequence's length. ``name`` is ``compressor`` or, for sparse attention, ``indexer``.
    """

    is_croppable = False

    @property
    def compress_rate(self) -> int:
        """Tokens in an entry."""
        return self.cache.entries[0].rate

    @property
    def entry_count(self) -> dict[str, int]:
        """Entries before the forward call under way, for each name."""
        count = self.sequences.length // self.compress_rate
        return {entry.name.removesuffix("_cache"): count for entry in self.cache.entries}

    def activate_past_recording(self) -> None:
        """Refused: buffers are overwritten."""
        raise EngineStateError(
            f"layer {self.cache.layer} keeps states, which cannot take tokens back; generate without an assistant and "
            "without prompt lookup, or fork() the cache before tokens on trial"
        )

    def store_compression_weights(
        self, name: str, kv: torch.Tensor, gate: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Take ``(sequences, tokens, width)`` behind what is buffered, and buffer what fills no entry.

        Returns keys and gates of whole entries, and the position of their first token.
        """
        rate = self.compress_rate
        count, buffered = divmod(self.sequences.length, rate)
        buffers = self._bind(f"{name}_buffer_kv", kv), self._bind(f"{name}_buffer_gate", gate)
        if buffered:
            kv, gate = (
                torch.cat([buffer[:, :buffered], new], dim=1) for buffer, new in zip(buffers, (kv, gate), strict=True)
            )
        usable = kv.shape[1] // rate * rate
        for buffer, new in zip(buffers, (kv, gate), strict=True):
            buffer[:, : kv.shape[1] - usable].copy_(new[:, usable:])
        return kv[:, :usable], gate[:, :usable], count * rate

    def update_overlap_state(
        self, name: str, chunk_kv: torch.Tensor, chunk_gate: torch.Tensor, head_dim: int
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Keep what the last of ``(sequences, entries, rate, width)`` leaves to the next; return what was left."""
        prior: list[torch.Tensor | None] = []
        for what, chunk in (("kv", chunk_kv), ("gate", chunk_gate)):
            left = chunk[:, -1, :, :head_dim]
            state = self._bind(f"{name}_overlap_{what}", left)
            prior.append(state.clone() if self.sequences.length >= self.compress_rate else None)
            state.copy_(left)
        return prior[0], prior[1]

    def update_compressor_states(self, name: str, compressed: torch.Tensor) -> torch.Tensor:
        """Store new entries ``(sequences, entries, width)``, perhaps none; return all."""
        names = [entry.name for entry in self.cache.entries]
        return append_entries(self.sequences, self.cache, names.index(f"{name}_cache"), compressed)

    def _bind(self, name: str, handed: torch.Tensor) -> torch.Tensor:
        state = self.sequences.states.bind(name)
        given = len(handed), handed.shape[-1], handed.dtype, handed.device
        if given == (len(state), state.shape[-1], state.dtype, state.device):
            return state
        raise PlanError(
            f"layer {self.cache.layer}: the model hands {name} of {tuple(handed.shape)} {handed.dtype} on "
            f"{handed.device}, but the plan has {tuple(state.shape)} {state.dtype} on {state.device}; plan with the "
            "model's dtype and device",
            layer=self.cache.layer,
        )
