"""Block tables as indices on the device: where a forward call writes and what it reads."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cachecore_transformers.pool import Group
from cachecore_transformers.tables import BlockTables, Span

__all__ = ["Places", "find_places", "find_reads", "read", "write"]


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
    found = find_reads(group, rows, tables.first * size, span)
    return found._replace(write=tuple(index.to(group.device) for index in write), read=found.read.to(group.device))


def find_reads(group: Group, rows: torch.Tensor, offset: int, span: Span) -> Places:
    """What a call reads, from the tables as a tensor whose first token is token ``offset`` of its sequence."""
    unit = group.entry_tokens
    per_block = group.block_size // unit
    numbers = torch.arange(span.visible // unit, -(-span.stop // unit), device=rows.device)
    read = rows[:, numbers // per_block - offset // group.block_size].long() * per_block + numbers % per_block
    return Places((), read.flatten(), span.visible % unit, span.stop - span.visible)


def write(view: torch.Tensor, places: Places, states: torch.Tensor) -> None:
    """Put ``(sequences, heads, tokens, dim)`` where the call under way writes."""
    tokens = states.detach().transpose(1, 2).reshape(-1, *view.shape[-2:])
    view.index_put_(places.write, tokens)


def read(view: torch.Tensor, places: Places, num_sequences: int) -> torch.Tensor:
    """All that a query of the call under way may see, contiguous ``(sequences, heads, tokens, dim)``."""
    num_heads, dim = view.shape[-2:]
    gathered = view.index_select(0, places.read).reshape(num_sequences, -1, num_heads, dim)
    seen = gathered[:, places.skip : places.skip + places.length].transpose(1, 2)
    # Not contiguous(), which leaves the stride of an axis of one head as it is.
    return torch.empty(seen.shape, dtype=seen.dtype, device=seen.device).copy_(seen)
