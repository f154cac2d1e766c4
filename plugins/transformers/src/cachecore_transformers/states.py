"""The states of a batch as tensors: views of its slots, or copies that are written back."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cachecore_transformers.plan import STATE_GROUP
from cachecore_transformers.pool import CachePool
from cachecore_transformers.tables import BlockTables, SlotTables

__all__ = ["BatchStates"]


class _Bound(NamedTuple):
    """A state handed to a layer; ``slots`` are None for a view, else where the copy goes back to."""

    tensor: torch.Tensor
    slots: torch.Tensor | None
    version: int


class BatchStates:
    """Hands one layer after another its states as ``(sequences, *shape)``.

    transformers writes states in place. Where the slots of a batch follow one another, a layer gets a
    view of them. Otherwise, as after a beam search step, it gets a copy, which goes back when the
    next layer asks or :meth:`flush` is called: at most one layer's states are out at a time.
    """

    def __init__(self, pool: CachePool, tables: BlockTables | None) -> None:
        self._pool = pool
        self._tables = tables if isinstance(tables, SlotTables) else None
        self._layer: int | None = None
        self._bound: dict[str, _Bound] = {}
        self._place: slice | torch.Tensor | None = None
        self._has_written = False

    @property
    def has_written(self) -> bool:
        """Whether slots may have changed since :meth:`forget`."""
        views = (bound for bound in self._bound.values() if bound.slots is None)
        return self._has_written or any(bound.tensor._version != bound.version for bound in views)

    def enter(self, layer: int) -> None:
        """``layer`` is next: what another one has out goes back."""
        if layer != self._layer:
            self.flush()
            self._layer = layer

    def bind(self, name: str) -> torch.Tensor:
        """State ``name`` of the layer that entered, to read and to write. No gradients enter the slots."""
        held = self._bound.get(name)
        if held is None:
            row = self._row(name)
            place = self._where()
            if isinstance(place, slice):
                view = row[place].detach()
                held = _Bound(view, None, view._version)
            else:
                held = _Bound(row.index_select(0, place), place, 0)
            self._bound[name] = held
        return held.tensor

    def flush(self) -> None:
        """Write back what is out."""
        self._has_written = self.has_written
        for name, (tensor, slots, _) in self._bound.items():
            if slots is not None:  # the row may be elsewhere than when the copy was taken: the engine may have slept
                self._row(name).index_copy_(0, slots, tensor.detach())
                self._has_written = True
        self._bound.clear()
        self._layer = None

    def forget(self) -> None:
        """Drop what is out without writing it back; the slots may be others from now on."""
        self._bound.clear()
        self._layer = self._place = None
        self._has_written = False

    def _row(self, name: str) -> torch.Tensor:
        row: torch.Tensor = self._pool.engine.states.state_caches.layer(
            name, -1 if self._layer is None else self._layer
        )
        return row

    def _where(self) -> slice | torch.Tensor:
        if self._place is None:
            slots = [] if self._tables is None else self._tables.slots
            if slots == list(range(slots[0], slots[0] + len(slots))):
                self._place = slice(slots[0], slots[0] + len(slots))
            else:
                self._place = torch.tensor(slots, device=self._pool.groups[STATE_GROUP].device)
        return self._place
