"""What an engine reports of itself: bytes held, ways taken, and why a slower way was taken."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["CopyStats", "EngineStats", "GroupStats"]


@dataclass(slots=True)
class CopyStats:
    """One direction of one group.

    ``path`` is the way the last call took and ``reason`` why; ``passed_over`` gives each better-ranked
    record's reason. ``fallback`` marks a slower way than there is.
    """

    direction: str
    path: str
    record: str
    fallback: bool
    passed_over: tuple[tuple[str, str], ...]
    block_nbytes: int
    workspace_nbytes: int
    num_calls: int = 0
    num_blocks: int = 0
    reason: str = ""

    @property
    def nbytes(self) -> int:
        """Payload bytes moved, counted once."""
        return self.num_blocks * self.block_nbytes


@dataclass(slots=True)
class GroupStats:
    """One group's two tiers. Asleep, it holds no device bytes, and in ``saved_nbytes`` what level 1 keeps.

    ``reserved_nbytes`` counts what memory with ``stable_addresses`` takes beyond the plan, too.
    """

    group: str
    num_blocks: int
    num_host_blocks: int
    nbytes: int
    reserved_nbytes: int
    host_nbytes: int
    host_reserved_nbytes: int
    memory_kind: str
    host_memory_kind: str | None
    copies: tuple[CopyStats, ...] = ()
    stable_addresses: bool = False
    saved_nbytes: int = 0


@dataclass(slots=True)
class EngineStats:
    """A snapshot; numbers do not change after it was taken. ``sleep_level`` is 0 while awake."""

    backend: str
    device: str
    groups: tuple[GroupStats, ...]
    num_fallback_calls: int = 0
    fallback_reasons: tuple[str, ...] = field(default=())
    sleep_level: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        data = asdict(self)
        for group, stats in zip(data["groups"], self.groups, strict=True):
            for copy, one in zip(group["copies"], stats.copies, strict=True):
                copy["nbytes"] = one.nbytes
        return data
