"""What every row holds, read straight from pool bytes: the second opinion on views and copies.

Addresses are worked out here from slices alone, without the layout's own strides or the copies' segments.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from cachecore.group_plan import GroupPlan

Key = tuple[int, int, int, int]
"""Spec, row, block (or slot), page of the block."""


class RowOracle:
    """One allocation of one plan, as a dictionary from row to bytes."""

    def __init__(self, plan: GroupPlan, allocation: Any, *, host: bool = False) -> None:
        self.plan = plan
        self.allocation = allocation
        self.layout = plan.host_layout if host else plan.layout
        self.num_blocks = allocation.num_entries * self.layout.pages_per_entry // plan.pages_per_unit

    def place(self, key: Key) -> tuple[int, int, int]:
        """Pool, first byte and bytes of one row's page."""
        spec, row, block, page = key
        pool, outer, offset, nbytes = self.layout.slices[spec][row]
        if self.layout.pages_per_entry == 1:
            entry, within = block * self.plan.pages_per_unit + page, 0
        else:
            nbytes //= self.plan.pages_per_unit
            entry, within = block, page * nbytes
        return (
            pool,
            (outer * self.allocation.num_entries + entry) * self.layout.pools[pool].inner + offset + within,
            nbytes,
        )

    def row_pages(self, blocks: Iterable[int] | None = None) -> list[Key]:
        """Every row's page, of ``blocks`` or of all."""
        return [
            (spec, row, block, page)
            for spec, rows in enumerate(self.layout.slices)
            for row in range(len(rows))
            for block in (range(self.num_blocks) if blocks is None else blocks)
            for page in range(self.plan.pages_per_unit)
        ]

    def read(self, blocks: Iterable[int] | None = None) -> dict[Key, bytes]:
        """What every row's page holds."""
        found = {}
        for key in self.row_pages(blocks):
            pool, start, nbytes = self.place(key)
            found[key] = bytes(self.allocation.pools[pool].pool[start : start + nbytes])
        return found

    def pools(self) -> list[bytes]:
        """All bytes of all pools."""
        return [bytes(pool.pool) for pool in self.allocation.pools]

    def fill(self, seed: int) -> None:
        """Random bytes everywhere, padding included."""
        source = random.Random(seed)
        for pool in self.allocation.pools:
            pool.pool[:] = source.randbytes(len(pool.pool))

    def padding_of(self, before: list[bytes], blocks: Iterable[int]) -> tuple[list[bytes], list[bytes]]:
        """``before`` and now with the rows and the padding of ``blocks`` blanked: what must not have changed."""
        pages, inner = self.layout.pages_per_entry, [pool.inner for pool in self.layout.pools]
        per_block = self.plan.pages_per_unit // pages
        blanked = []
        for contents in (before, self.pools()):
            copies = [bytearray(one) for one in contents]
            for number, pool in enumerate(self.layout.pools):
                for outer in range(pool.outer):
                    for block in blocks:
                        at = (outer * self.allocation.num_entries + block * per_block) * inner[number]
                        copies[number][at : at + per_block * inner[number]] = bytes(per_block * inner[number])
            blanked.append([bytes(one) for one in copies])
        return blanked[0], blanked[1]
