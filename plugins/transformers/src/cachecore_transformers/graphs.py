"""Decode steps as one CUDA graph: captured once, replayed while the block tables change beside it."""

from __future__ import annotations

from typing import Any

import torch

from cachecore import EngineStateError
from cachecore_transformers.cache import CachecoreCache
from cachecore_transformers.handed import ATTENTION

__all__ = ["DecodeGraph"]


class DecodeGraph:
    """Steps of one token a sequence of ``model`` with ``cache``, which already holds the prompts.

    Blocks are taken and tables uploaded before each replay, so sequences grow, and copies and swaps
    between steps are seen. Captured again only when a table has outgrown its place, the batch is another, or the
    engine slept and its memory is elsewhere.

    For models without states and windows whose attention is ``"cachecore"`` and reads the blocks in every
    layer, on CUDA, with prompts that need no mask.

    >>> step = DecodeGraph(model, cache)  # doctest: +SKIP
    >>> logits = step(ids)  # (sequences, 1) in, (sequences, 1, vocabulary) out, until the next call
    """

    def __init__(self, model: Any, cache: CachecoreCache) -> None:
        if not isinstance(cache, CachecoreCache):
            raise TypeError(f"cache must be a CachecoreCache, not {cache!r}")
        if not hasattr(getattr(model, "config", None), "get_text_config"):
            raise TypeError(f"model must be a transformers model, not {model!r}")
        _check(model, cache)
        self.model = model
        self.cache = cache
        self._graph: torch.cuda.CUDAGraph | None = None
        self._seen: tuple[int, ...] = ()
        self._ids = self._positions = self._logits = torch.empty(0)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """One step. The first two after a change are slower: one runs as usual, one is captured."""
        sequences = self.cache.sequences
        if ids.shape != (sequences.num_sequences, 1):
            raise ValueError(
                f"ids are {tuple(ids.shape)}; expected one token for each of the {sequences.num_sequences} sequences "
                "of the cache"
            )
        engine = self.cache.pool.engine
        _ = engine.layer_caches  # raises while the engine is asleep: a graph would touch memory that is not there
        places = *sequences.prepare_step(), engine.generation
        if places != self._seen or len(ids) != len(self._ids):
            self._seen, self._graph = (), None
            self._ids = ids.to(self.model.device, torch.int64, copy=True)
            self._positions = torch.full_like(self._ids, sequences.length)
            logits = self._forward()  # compiles and allocates what a capture may not
            self._check_paths()
            self._seen = places
            return logits
        self._ids.copy_(ids, non_blocking=True)
        self._positions.fill_(sequences.length)
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.Stream(self._ids.device)):  # torch's own is of one device
                self._logits = self._forward()
            self._graph = graph
        else:
            sequences.count_step()
        self._graph.replay()
        return self._logits

    def _forward(self) -> torch.Tensor:
        with torch.no_grad():
            logits: torch.Tensor = self.model(
                input_ids=self._ids, position_ids=self._positions, past_key_values=self.cache, use_cache=True
            ).logits
        return logits

    def _check_paths(self) -> None:
        for path in self.cache.attention_paths():
            if path.path != "paged":
                raise EngineStateError(
                    f"layer {path.layer} cannot be captured, because it does not read the blocks: {path.reason}"
                )


def _check(model: Any, cache: CachecoreCache) -> None:
    named = getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)
    if named != ATTENTION:
        raise EngineStateError(
            f"the model's attention is {named!r}; call model.set_attn_implementation({ATTENTION!r}) before the prompts"
        )
    for layer in cache.pool.layers:
        if layer.states or layer.window is not None:
            what = "states" if layer.states else "a window"
            raise EngineStateError(
                f"layer {layer.layer} ({layer.kind}) has {what}, which a captured step does not follow; call the model"
            )
    if not cache.sequences.length:
        raise EngineStateError("the cache is empty; call the model with the prompts first")
    if torch.device(model.device).type != "cuda":
        raise EngineStateError(f"the model is on {model.device}; graphs are for CUDA")
