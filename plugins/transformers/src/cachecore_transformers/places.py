"""Block tables as indices on the device: where a forward call writes and what it reads."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cachecore_transformers.pool import Group
from cachecore_transformers.tables import BlockTables, Span

__all__ = ["Places", "find_places"]


class Places(NamedTuple):
    """Where one forward call writes and reads in one group; every layer of the group uses the same.

    ``write`` indexes the leading axes of a row view, one element a new token, sequences one after
    another. ``read`` are the entries to gather, ``(num_sequences * entries,)``; the first ``skip``
    tokens gathered for each sequence lie before what its queries may see, and ``length`` follow.
    """

    write: tuple[torch.Tensor, ...]
    read: torch.Tensor
    skip: int
    length: int


def find_places(group: Group, tables: BlockTables, span: Span) -> Places:
    """Turn tables into indices on the pool's device."""
    size, unit = group.block_size, group.entry_tokens
    per_block = size // unit
    rows = torch.tensor(tables.tables, dtype=torch.int64).reshape(len(tables.tables), -1)
    position = torch.arange(span.start, span.stop)
    entry = rows[:, position // size - tables.first] * per_block + position % size // unit
    write = [entry.flatten()]
    if unit != group.page_size:
        write.append((position % unit // group.page_size).repeat(len(rows)))
    write.append((position % group.page_size).repeat(len(rows)))
    numbers = torch.arange(span.visible // unit, -(-span.stop // unit))
    read = rows[:, numbers // per_block - tables.first] * per_block + numbers % per_block
    return Places(
        tuple(index.to(group.device) for index in write),
        read.flatten().to(group.device),
        span.visible % unit,
        span.stop - span.visible,
    )
