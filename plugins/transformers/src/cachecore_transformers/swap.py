"""Moving whole sequences to the host tier and back, every block and slot of every group."""

from __future__ import annotations

from collections.abc import Iterable

from cachecore.blocks import BlockPairs
from cachecore.errors import EngineStateError
from cachecore.meaning import several, whole
from cachecore_transformers.blocks import BlockAllocator
from cachecore_transformers.sequences import Sequences

__all__ = ["swap_in", "swap_out"]


def swap_out(sequences: Sequences, which: Iterable[int] | None = None) -> dict[str, BlockPairs]:
    """Move ``which`` sequences (default: all that are on the device) to host blocks; free their device blocks.

    A block that several of them share moves once. One that other tables hold too is copied and stays.
    Returns what moved: device blocks to host blocks, for each group. Never blocks the host.

    Raises
    ------
    AllocationError
        When a group has too few free host blocks. Nothing was moved.
    """
    chosen = _choose(sequences, which, "swap_out()", on_host=False)
    return _move(sequences, chosen, to_host=True)


def swap_in(sequences: Sequences, which: Iterable[int] | None = None) -> dict[str, BlockPairs]:
    """Move ``which`` sequences (default: all that are on the host) back, into whatever blocks are free.

    Returns what moved: host blocks to device blocks, for each group. Sequences that come back together
    share again what they shared. Raises as :func:`swap_out`.
    """
    chosen = _choose(sequences, which, "swap_in()", on_host=True)
    return _move(sequences, chosen, to_host=False)


def _choose(sequences: Sequences, which: Iterable[int] | None, what: str, *, on_host: bool) -> list[int]:
    sequences.check_whole(what)
    everyone = range(sequences.num_sequences)
    if which is None:
        return [sequence for sequence in everyone if (sequence in sequences.on_host) == on_host]
    chosen = sorted({whole(sequence, f"{what}: a sequence") for sequence in several(which, f"{what}: sequences")})
    for sequence in chosen:
        if sequence not in everyone:
            raise IndexError(f"{what}: sequence {sequence} does not exist; this cache holds {len(everyone)}")
        if (sequence in sequences.on_host) != on_host:
            where = "on the device" if on_host else "on the host already"
            raise EngineStateError(f"{what}: sequence {sequence} is {where}")
    return chosen


def _move(sequences: Sequences, chosen: list[int], *, to_host: bool) -> dict[str, BlockPairs]:
    what = "swap_out()" if to_host else "swap_in()"
    held = {
        name: list(dict.fromkeys(block for sequence in chosen for block in tables.tables[sequence]))
        for name, tables in sequences.tables.items()
    }
    ends = {name: _ends(sequences, name, to_host=to_host) for name in held}
    for name, blocks in held.items():
        ends[name][1].check(len(blocks), what)
    moved: dict[str, BlockPairs] = {}
    try:
        for name, blocks in held.items():
            moved[name] = BlockPairs(blocks, ends[name][1].take(len(blocks), what))
            # The caller's stream waits, so a block freed here is not written before it was read.
            sequences.pool.groups[name].swap(moved[name], to_host=to_host).wait()
    except BaseException:
        for name, pairs in moved.items():
            ends[name][1].release(pairs.dst)
        raise
    for name, pairs in moved.items():
        _rewrite(sequences, name, chosen, pairs, *ends[name])
    (sequences.on_host.update if to_host else sequences.on_host.difference_update)(chosen)
    return moved


def _ends(sequences: Sequences, name: str, *, to_host: bool) -> tuple[BlockAllocator, BlockAllocator]:
    group = sequences.pool.groups[name]
    ends = group.allocator, group.host_allocator
    return ends if to_host else (ends[1], ends[0])


def _rewrite(
    sequences: Sequences, name: str, chosen: list[int], pairs: BlockPairs, src: BlockAllocator, dst: BlockAllocator
) -> None:
    """Point the tables at the new blocks; every reference moves from one tier to the other."""
    new = dict(pairs)
    tables = sequences.tables[name].tables
    for sequence in chosen:
        old, tables[sequence] = tables[sequence], [new[block] for block in tables[sequence]]
        dst.share(tables[sequence])
        src.release(old)
    dst.release(pairs.dst)  # the reference that take() gave; the tables hold their own now
