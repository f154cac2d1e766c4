"""Block tables on the device for steps of one token a sequence: uploaded when they change, not in every step."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cachecore_transformers.places import Places, find_reads
from cachecore_transformers.pool import Group
from cachecore_transformers.tables import BlockTables, Span

__all__ = ["DecodeStep", "StepTables"]

_COLUMNS = 64
"""A table grows by so many blocks, so that its address seldom changes."""


class DecodeStep(NamedTuple):
    """Where the new token of every sequence goes and what it sees, in one group; every layer uses the same.

    Tokens are counted from the first one in the table. ``table`` is ``(num_sequences, blocks)`` of logical
    blocks; the new token is ``stops - 1``, and ``starts`` (None: 0) the first one seen. ``span`` says
    the same in tokens of the sequence, whose token ``offset`` is the table's first.
    """

    table: torch.Tensor
    stops: torch.Tensor
    starts: torch.Tensor | None
    span: Span
    offset: int

    def places(self, group: Group) -> Places:
        """What to gather where attention cannot read the blocks; there is nothing to write any more."""
        return find_reads(group, self.table, self.offset, self.span)


class StepTables:
    """The tables of one cache in one group, as they were last uploaded.

    They stay where they are as long as they fit: a captured graph reads what the next step wrote there.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._uploaded: list[list[int]] = []
        self._table = self._lengths = torch.empty(0)

    def step(self, tables: BlockTables, span: Span) -> DecodeStep:
        """The step that writes the last token of ``span``. Queues what it needs; the host does not wait."""
        if tables.tables != self._uploaded:
            self._upload(tables.tables)
        offset = tables.first * tables.block_size
        starts, stops = self._lengths
        stops.fill_(span.stop - offset)
        seen = span.visible - offset
        if seen:
            starts.fill_(seen)
        table = self._table[:, : tables.num_blocks]
        return DecodeStep(table, stops, starts if seen else None, span, offset)

    @property
    def whole(self) -> torch.Tensor:
        """The table with room for more blocks."""
        return self._table

    def _upload(self, tables: list[list[int]]) -> None:
        num_sequences, num_blocks = len(tables), len(tables[0])
        if num_sequences != len(self._table) or num_blocks > self._table.shape[1]:
            columns = -(-num_blocks // _COLUMNS) * _COLUMNS
            with torch.inference_mode(False):  # any mode may write them later
                self._table = torch.zeros(num_sequences, columns, dtype=torch.int32, device=self._group.device)
                self._lengths = torch.zeros(2, num_sequences, dtype=torch.int32, device=self._group.device)
        pinned = self._group.device.type == "cuda"
        listed = torch.tensor(tables, dtype=torch.int32, pin_memory=pinned)
        self._table[:, :num_blocks].copy_(listed, non_blocking=pinned)
        self._uploaded = [list(table) for table in tables]
