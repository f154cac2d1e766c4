"""Ranks that are threads of one process: for tests, and for engines that run their workers in threads."""

from __future__ import annotations

import threading

from cachecore.errors import AgreementError
from cachecore.meaning import positive, seconds

__all__ = ["LocalRank", "local_ranks"]


class LocalRank:
    """One rank of :func:`local_ranks`."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.world_size = meeting.barrier.parties
        self._meeting = meeting

    def all_gather(self, text: str, timeout_s: float) -> list[str]:
        """Every rank's text; raises on all ranks when one does not come within ``timeout_s``.

        After that no round can be held any more: make new ranks.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a string, not {text!r}")
        meeting, limit_s = self._meeting, seconds(timeout_s, "timeout_s")
        meeting.texts[self.rank] = text
        try:
            meeting.barrier.wait(limit_s)
        except threading.BrokenBarrierError as error:
            missing = [rank for rank in range(self.world_size) if rank not in meeting.texts]
            told = f"rank {', '.join(map(str, missing))} did not come" if missing else "a rank did not come"
            raise AgreementError(f"{told} within {limit_s:g} s; see its own log for why", missing=missing) from error
        return meeting.gathered


class _Meeting:
    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, self._gather)
        self.texts: dict[int, str] = {}
        self.gathered: list[str] = []

    def _gather(self) -> None:
        """Run by the last to come; the next round ends only after every rank has returned from this one."""
        self.gathered = [self.texts[rank] for rank in range(self.barrier.parties)]
        self.texts.clear()


def local_ranks(world_size: int) -> tuple[LocalRank, ...]:
    """As many communicators as there are threads, one for each."""
    meeting = _Meeting(positive(world_size, "world_size"))
    return tuple(LocalRank(rank, meeting) for rank in range(world_size))
