"""The step of one token that is under way, as layers, attention and captured graphs share it."""

from __future__ import annotations

from collections.abc import Mapping

from cachecore.errors import EngineStateError
from cachecore_transformers.decode_steps import DecodeStep, StepTables
from cachecore_transformers.handed import Reader
from cachecore_transformers.pool import CachePool, Group
from cachecore_transformers.tables import BlockTables

__all__ = ["Steps"]


class Steps:
    """Tables on the device for the step under way, and whether attention has read what it left in the blocks."""

    def __init__(self, pool: CachePool) -> None:
        self._pool = pool
        self._steps: dict[str, DecodeStep] = {}
        self._tables: dict[str, StepTables] = {}
        self._readers: dict[int, Reader] = {}
        self._unread: tuple[int, Reader] | None = None

    def find(self, group: str, tables: BlockTables, length: int) -> DecodeStep:
        """The tables of the call under way, which brings token ``length`` of every sequence, in ``group``."""
        step = self._steps.get(group)
        if step is None:
            held = self._pool.groups[group]
            if not isinstance(held, Group):
                raise EngineStateError(f"group {group!r} has slots, no blocks")
            if group not in self._tables:
                self._tables[group] = StepTables(held)
            step = self._steps[group] = self._tables[group].step(tables, tables.span(length, 1))
        return step

    def prepare(self, tables: Mapping[str, BlockTables], length: int) -> tuple[int, ...]:
        """As :meth:`find` in every group of blocks, before the call; returns where the tables stand.

        They are as wide as they may get there, so that their width says nothing of this step.
        """
        for name, held in self._pool.groups.items():
            if isinstance(held, Group):
                step = self.find(name, tables[name], length)
                self._steps[name] = step._replace(table=self._tables[name].whole)
        return tuple(step.table.data_ptr() for step in self._steps.values())

    def forget(self) -> None:
        """Tables or lengths may be others from now on."""
        self._steps.clear()

    def left_unread(self, layer: int, reader: Reader) -> None:
        """``layer`` handed over only its new keys and values; attention is to read the rest in the blocks."""
        reader.is_due = True
        self._readers[layer] = reader
        self._unread = layer, reader

    def check_read(self) -> None:
        """Raise :class:`~cachecore.EngineStateError` when attention did not do so, and so its result is wrong."""
        if self._unread is None or not self._unread[1].is_due:
            return
        raise EngineStateError(
            f"layer {self._unread[0]} left its keys and values in the blocks for attention 'cachecore', which was not "
            "called with them: the model changes them on their way, or computes attention in another way by now. What "
            "it computed from them is wrong. Call rollback() on the cache (or reset() when it holds the wrong tokens "
            "already), then model.set_attn_implementation('sdpa') and repeat the call"
        )

    def give_up(self) -> None:
        """Whatever was not read is not going to be, and whoever reads has to show up again."""
        if self._unread is not None and self._unread[1].is_due:
            for reader in self._readers.values():
                reader.config = None
        self._unread = None
        self.forget()
