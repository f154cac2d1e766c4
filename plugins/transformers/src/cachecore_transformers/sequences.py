"""The sequences of one cache: their length, their tables in every group, and the forward call under way."""

from __future__ import annotations

import torch

from cachecore.errors import EngineStateError
from cachecore_transformers.calls import WRITTEN, ForwardCall, needed_parts
from cachecore_transformers.places import Places, find_places
from cachecore_transformers.plan import STATE_GROUP
from cachecore_transformers.pool import CachePool, Group, copy_blocks
from cachecore_transformers.states import BatchStates
from cachecore_transformers.steps import Steps

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
        self.steps = Steps(pool)

    def layer_length(self, layer: int) -> int:
        """Tokens that ``layer`` holds keys of: the new ones too once it has seen this forward call."""
        return self.length + (self._call.tokens if self._call.stage((layer, "kv")) else 0)

    def enter(
        self,
        layer: int,
        name: str,
        num_sequences: int,
        tokens: int | None = None,
        *,
        at_least: int = 1,
        stage: int = WRITTEN,
    ) -> None:
        """Begin or join the forward call that brings part ``name`` of ``layer`` the next ``tokens``.

        Without ``tokens`` a layer is not sure how many they are: those of the call, or else ``at_least``.
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
            self._begin(num_sequences, at_least if tokens is None else tokens)
            call.is_guess = tokens is None
        elif call.is_guess and (tokens is not None or at_least > call.tokens):
            self._learn(at_least if tokens is None else tokens)
            call.is_guess = tokens is None
        call.record((layer, name), stage)
        self.states.enter(layer)

    def close_whole(self, layer: int, name: str, stage: int) -> None:
        """Close a call that every layer has seen, if part ``name`` of ``layer`` can only belong to the next one."""
        if self._call.stage((layer, name)) >= stage:
            self._close()

    def copy_of_state(self, layer: int, name: str) -> torch.Tensor:
        """State ``name`` of ``layer``, ``(sequences, *shape)``, between forward calls."""
        self.check_whole("reading a state")
        self.check_resident("reading a state")
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

    def prepare_step(self) -> tuple[int, ...]:
        """Take the blocks of the next step and bring the tables up to date, before a graph that reads them.

        Returns the addresses that the graph must have been captured with.
        """
        self.check_whole("a captured step")
        self.check_resident("a captured step")
        self._reserve(self.num_sequences, 1)
        return self.steps.prepare(self.tables, self.length)

    def count_step(self) -> None:
        """The step that was prepared is done, on the device alone."""
        self._settle()

    def leave(self) -> None:
        """A layer has written what it was handed. After the last, count the tokens, let go what no query will see.

        A layer of states does not say when it is done: a call that ends with one is closed by what comes next.
        """
        self._call.written()
        self._close()

    def written(self) -> None:
        """A layer of states has been handed one, or has written one, and may go on with others."""
        self._call.written()

    def _close(self) -> None:
        if self._call.is_whole:
            self._settle()

    def rollback(self) -> None:
        """Forget the tokens of an interrupted forward call, in all layers. Without one, do nothing.

        Raises
        ------
        EngineStateError
            When the call has overwritten states of tokens before it: only :meth:`clear` helps then.
        """
        self._close()
        self.steps.give_up()
        if not self._call.under_way:
            if not self.on_host:  # blocks of a call that was interrupted before any layer saw it
                self._truncate(self.length)
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
        self.check_resident("a forward call")
        self._reserve(num_sequences, tokens)
        self.num_sequences = num_sequences

    def _learn(self, tokens: int) -> None:
        """The call is of ``tokens``, not of as many as a layer thought; blocks for more go back."""
        if tokens < self._call.tokens:
            for tables in self.tables.values():
                tables.truncate(self.length + tokens)
        try:
            self._reserve(self.num_sequences, tokens)
        except BaseException:
            if not self._call.has_written and not (self.length and self.states.has_written):
                self._forget_call()
                self._truncate(self.length)
            raise

    def _reserve(self, num_sequences: int, tokens: int) -> None:
        stop = self.length + tokens
        purpose = f"a step of {tokens} tokens in {num_sequences} sequences of {self.length}"
        for tables in self.tables.values():
            tables.allocator.check(tables.missing(num_sequences, stop), purpose)
        for tables in self.tables.values():
            tables.reserve(num_sequences, stop, purpose)
        self._call.start, self._call.tokens = self.length, tokens

    def _settle(self) -> None:
        """Interrupted anywhere, it may be called again."""
        self.states.flush()
        self.length = self._call.start + self._call.tokens
        self._forget_call()
        if not self.record_past:
            self.drop_unseen()

    def _forget_call(self) -> None:
        self.states.forget()
        self._places.clear()
        self.steps.forget()
        self._call.forget()

    def drop_unseen(self) -> None:
        """Release the blocks that lie behind every window."""
        for tables in self.tables.values():
            tables.drop_before(tables.span(self.length, 1).visible)

    def crop(self, tokens: int) -> None:
        """Forget the last ``tokens`` of every sequence, then what lies behind the windows."""
        self.check_whole("crop()")
        self.check_resident("crop()")  # also for no tokens: blocks behind the windows go back to the device's
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
        for name, blocks in copy_blocks(self.pool, sources, "crop()").items():
            for (table, at), block in zip(shared[name], blocks, strict=True):
                self.tables[name].allocator.release([table[at]])
                table[at] = block

    def clear(self) -> None:
        """Release every block of every sequence, on both tiers."""
        self._forget_call()
        self.steps.give_up()
        for name, tables in self.tables.items():
            host = self.pool.groups[name].host_allocator
            for sequence in sorted(self.on_host, reverse=True):
                host.release(tables.tables.pop(sequence))
            tables.clear()
        self.on_host.clear()
        self.length = self.num_sequences = 0

    def check_whole(self, what: str) -> None:
        """Raise :class:`~cachecore.EngineStateError` when a forward call was interrupted."""
        self._close()
        self.steps.forget()
        if self._call.under_way:
            raise EngineStateError(
                f"{what}: a forward call of {self._call.tokens} tokens was interrupted after layers "
                f"{self._call.layers}; call rollback() on the cache first"
            )

    def check_resident(self, what: str) -> None:
        """Raise :class:`~cachecore.EngineStateError` while sequences are on the host."""
        if self.on_host:
            raise EngineStateError(f"{what}: sequences {sorted(self.on_host)} are on the host; call swap_in() first")
