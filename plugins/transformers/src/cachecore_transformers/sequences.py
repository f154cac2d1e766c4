"""The sequences of one cache: their length, their tables in every group, and the forward call under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from cachecore.blocks import BlockPairs
from cachecore.errors import EngineStateError
from cachecore_transformers.calls import WRITTEN, ForwardCall, needed_parts
from cachecore_transformers.places import Places, find_places
from cachecore_transformers.plan import STATE_GROUP
from cachecore_transformers.pool import CachePool, Group
from cachecore_transformers.states import BatchStates
from cachecore_transformers.tables import Fork

__all__ = ["Sequences"]


class Sequences:
    """What all layers of a cache share. Every change is made in all groups or in none.

    A forward call is *under way* from its first layer's update to its last layer's. It takes the
    blocks of every group at its start, so that running out of blocks leaves everything as it was.
    """

    def __init__(self, pool: CachePool) -> None:
        self.pool = pool
        self.length = 0
        self.num_sequences = 0
        self.on_host: set[int] = set()
        self.record_past = False
        self.tables = {name: group.new_tables() for name, group in pool.groups.items()}
        self.states = BatchStates(pool, self.tables.get(STATE_GROUP))
        self._call = ForwardCall(needed_parts(pool.layers))
        self._places: dict[str, Places] = {}

    # -- a forward call ------------------------------------------------------------------------

    def layer_length(self, layer: int) -> int:
        """Tokens that ``layer`` holds keys of: the new ones too once it has seen this forward call."""
        return self.length + (self._call.tokens if self._call.stage((layer, "kv")) else 0)

    def enter(
        self, layer: int, name: str, num_sequences: int, tokens: int | None = None, *, stage: int = WRITTEN
    ) -> None:
        """Begin or join the forward call that brings part ``name`` of ``layer`` the next ``tokens``.

        Without ``tokens`` a layer does not know how many they are: those of the call, and at least one.
        """
        call = self._call
        again = call.stage((layer, name)) >= stage
        if again and call.is_whole:
            self._settle()
        elif again or (call.under_way and not call.is_guess and tokens not in (None, call.tokens)):
            raise EngineStateError(
                f"layer {layer} is handed {'the next' if tokens is None else tokens} tokens while a forward call of "
                f"{call.tokens} is under way (layers {call.layers} of {call.num_layers} have seen it): that call was "
                "interrupted or skips layers. Call rollback() on the cache to forget its tokens, then repeat it"
            )
        if not call.under_way:
            self._begin(num_sequences, tokens or 1)
            call.is_guess = tokens is None
        elif tokens is not None and call.is_guess:
            self._learn(tokens)
        call.record((layer, name), stage)
        self.states.enter(layer)

    def close_whole(self, layer: int, name: str, stage: int) -> None:
        """Close a call that every layer has seen, if part ``name`` of ``layer`` can only belong to the next one."""
        if self._call.stage((layer, name)) >= stage:
            self.leave()

    def copy_of_state(self, layer: int, name: str) -> torch.Tensor:
        """State ``name`` of ``layer``, ``(sequences, *shape)``, between forward calls."""
        self.check_whole("reading a state")
        self._check_resident("reading a state")
        self.states.enter(layer)
        found = self.states.bind(name).clone()
        self.states.forget()
        return found

    def places(self, group: str) -> Places:
        """Where the call under way writes and reads in ``group``."""
        places = self._places.get(group)
        if places is None:
            tables, held = self.tables[group], self.pool.groups[group]
            if not isinstance(held, Group):
                raise EngineStateError(f"group {group!r} has slots, no blocks")
            span = tables.span(self.length, self._call.tokens)
            places = self._places[group] = find_places(held, tables, span)
        return places

    def leave(self) -> None:
        """Close the forward call after its last layer: count its tokens, let go what no query will see.

        A layer of states does not say when it is done: a call that ends with one is closed by what comes next.
        """
        if self._call.is_whole:
            self._settle()

    def rollback(self) -> None:
        """Forget the tokens of an interrupted forward call, in all layers. Without one, do nothing.

        Raises
        ------
        EngineStateError
            When the call has overwritten states of tokens before it: only :meth:`clear` helps then.
        """
        self.leave()
        if not self._call.under_way:
            return
        if self.length and self.states.has_written:
            raise EngineStateError(
                f"rollback(): layers {self._call.layers} have overwritten their states with those of the interrupted "
                "call; reset() the cache and begin with the prompt, or keep a fork() where that may happen"
            )
        self._forget_call()
        self._truncate(self.length)

    def _begin(self, num_sequences: int, tokens: int) -> None:
        if self.num_sequences and num_sequences != self.num_sequences:
            raise EngineStateError(
                f"this cache holds {self.num_sequences} sequences, but the model was called with {num_sequences}; use "
                "batch_repeat_interleave(), batch_select_indices() or a new cache"
            )
        self._check_resident("a forward call")
        self._reserve(num_sequences, tokens)
        self.num_sequences = num_sequences

    def _learn(self, tokens: int) -> None:
        """The call is of ``tokens``, not one."""
        try:
            self._reserve(self.num_sequences, tokens)
        except BaseException:
            if not self._call.has_written:
                self._forget_call()
                self._truncate(self.length)
            raise
        self._call.is_guess = False

    def _reserve(self, num_sequences: int, tokens: int) -> None:
        stop = self.length + tokens
        purpose = f"a step of {tokens} tokens in {num_sequences} sequences of {self.length}"
        for tables in self.tables.values():
            tables.allocator.check(tables.missing(num_sequences, stop), purpose)
        for tables in self.tables.values():
            tables.reserve(num_sequences, stop, purpose)
        self._call.tokens = tokens

    def _settle(self) -> None:
        self.length += self._call.tokens
        self.states.flush()
        self._forget_call()
        if not self.record_past:
            self.drop_unseen()

    def _forget_call(self) -> None:
        self._call.forget()
        self.states.forget()
        self._places.clear()

    # -- fewer tokens --------------------------------------------------------------------------

    def drop_unseen(self) -> None:
        """Release the blocks that lie behind every window."""
        for tables in self.tables.values():
            tables.drop_before(tables.span(self.length, 1).visible)

    def crop(self, tokens: int) -> None:
        """Forget the last ``tokens`` of every sequence, then what lies behind the windows."""
        self.check_whole("crop()")
        if tokens and STATE_GROUP in self.tables:
            raise EngineStateError("crop(): states cannot take tokens back; fork() the cache before tokens on trial")
        length = max(0, self.length - tokens)
        for name, tables in self.tables.items():
            oldest = tables.first * tables.block_size
            if tokens and tables.span(length, 1).visible < oldest:
                raise EngineStateError(
                    f"group {name!r}: after removing {tokens} tokens its window of {tables.window} needs tokens that "
                    f"were released (before token {oldest}); call activate_past_recording() before the tokens that "
                    "may be taken back"
                )
        if tokens:
            self._check_resident("crop()")
            self._own_last_blocks(length)
            self._truncate(length)
        self.drop_unseen()

    def _truncate(self, length: int) -> None:
        for tables in self.tables.values():
            tables.truncate(length)
        self.length = length
        if not length:
            self.clear()

    def _own_last_blocks(self, length: int) -> None:
        """Copy the block that ends up not full where others refer to it, so that writing stays safe."""
        shared: dict[str, list[tuple[list[int], int]]] = {}
        for name, tables in self.tables.items():
            last = length // tables.block_size - tables.first
            held = [(table, last) for table in tables.tables] if length % tables.block_size else []
            shared[name] = [(table, at) for table, at in held if tables.allocator.references(table[at]) > 1]
        sources = {name: [table[at] for table, at in places] for name, places in shared.items()}
        for name, blocks in self._copied(sources, "crop()").items():
            for (table, at), block in zip(shared[name], blocks, strict=True):
                self.tables[name].allocator.release([table[at]])
                table[at] = block

    def clear(self) -> None:
        """Release every block of every sequence, on both tiers."""
        self._forget_call()
        for name, tables in self.tables.items():
            host = self.pool.groups[name].host_allocator
            for sequence in sorted(self.on_host, reverse=True):
                host.release(tables.tables.pop(sequence))
            tables.clear()
        self.on_host.clear()
        self.length = self.num_sequences = 0

    # -- other sequences -----------------------------------------------------------------------

    def select(self, indices: Sequence[int], what: str) -> None:
        """Continue with the sequences ``indices``: repeated ones fork, those left out are released."""
        forks = self._plan_forks(indices, what, keep=False)
        if not indices:  # nobody is left, so nothing is remembered of how long they were
            self.clear()
            return
        blocks = self._copied({name: fork.sources for name, fork in forks.items()}, what)
        for name, fork in forks.items():
            self.tables[name].adopt(fork, blocks[name])
        self.num_sequences = len(indices)

    def fork_into(self, other: Sequences) -> None:
        """Give the empty ``other`` the same sequences: full blocks shared, the rest copied."""
        forks = self._plan_forks(range(self.num_sequences), "fork()", keep=True)
        blocks = self._copied({name: fork.sources for name, fork in forks.items()}, "fork()")
        for name, fork in forks.items():
            other.tables[name].first = self.tables[name].first
            other.tables[name].adopt(fork, blocks[name])
        other.length, other.num_sequences, other.record_past = self.length, self.num_sequences, self.record_past

    def _plan_forks(self, indices: Sequence[int], what: str, *, keep: bool) -> dict[str, Fork]:
        self.check_whole(what)
        self._check_resident(what)
        for index in indices:
            if not 0 <= index < self.num_sequences:
                raise IndexError(f"{what}: sequence {index} does not exist; this cache holds {self.num_sequences}")
        return {name: tables.fork(indices, self.length, keep=keep) for name, tables in self.tables.items()}

    def _copied(self, sources: Mapping[str, Sequence[int]], what: str) -> dict[str, list[int]]:
        """Copies of blocks, in every group or in none: on failure nothing stays taken."""
        for name, blocks in sources.items():
            self.tables[name].allocator.check(len(blocks), what)
        taken: dict[str, list[int]] = {}
        try:
            for name, blocks in sources.items():
                taken[name] = self.tables[name].allocator.take(len(blocks), what)
                self.pool.groups[name].copy(BlockPairs(blocks, taken[name]))
        except BaseException:
            for name, blocks in taken.items():
                self.tables[name].allocator.release(blocks)
            raise
        return taken

    # -- checks --------------------------------------------------------------------------------

    def check_whole(self, what: str) -> None:
        """Raise :class:`~cachecore.EngineStateError` when a forward call was interrupted."""
        self.leave()
        if self._call.under_way:
            raise EngineStateError(
                f"{what}: a forward call of {self._call.tokens} tokens was interrupted after layers "
                f"{self._call.layers}; call rollback() on the cache first"
            )

    def _check_resident(self, what: str) -> None:
        if self.on_host:
            raise EngineStateError(f"{what}: sequences {sorted(self.on_host)} are on the host; call swap_in() first")
