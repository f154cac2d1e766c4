"""Other sequences in a batch: selected, repeated, or forked into another cache."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore_transformers.pool import copy_blocks
from cachecore_transformers.sequences import Sequences
from cachecore_transformers.tables import Fork

__all__ = ["fork_into", "select"]


def select(sequences: Sequences, indices: Sequence[int], what: str) -> None:
    """Continue with the sequences ``indices``: repeated ones fork, those left out are released."""
    forks = _plan(sequences, indices, what, keep=False)
    if not indices:  # nobody is left, so nothing is remembered of how long they were
        sequences.clear()
        return
    blocks = copy_blocks(sequences.pool, {name: fork.sources for name, fork in forks.items()}, what)
    for name, fork in forks.items():
        sequences.tables[name].adopt(fork, blocks[name])
    sequences.num_sequences = len(indices)


def fork_into(sequences: Sequences, other: Sequences) -> None:
    """Give the empty ``other`` the same sequences: full blocks shared, the rest and the states copied."""
    forks = _plan(sequences, range(sequences.num_sequences), "fork()", keep=True)
    blocks = copy_blocks(sequences.pool, {name: fork.sources for name, fork in forks.items()}, "fork()")
    for name, fork in forks.items():
        other.tables[name].first = sequences.tables[name].first
        other.tables[name].adopt(fork, blocks[name])
    other.length, other.num_sequences = sequences.length, sequences.num_sequences
    other.record_past = sequences.record_past


def _plan(sequences: Sequences, indices: Sequence[int], what: str, *, keep: bool) -> dict[str, Fork]:
    sequences.check_whole(what)
    sequences.check_resident(what)
    held = sequences.num_sequences
    for index in indices:
        if not 0 <= index < held:
            raise IndexError(f"{what}: sequence {index} does not exist; this cache holds {held}")
    return {name: tables.fork(indices, sequences.length, keep=keep) for name, tables in sequences.tables.items()}
