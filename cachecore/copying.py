"""The contract between the core and a copy primitive: what it is built from, what it does, how it is announced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cachecore.backend import API_VERSION, CacheAllocation, CacheBackend, Completion
from cachecore.blocks import BlockPairs
from cachecore.device import DeviceSpec
from cachecore.errors import EngineStateError
from cachecore.layout import CacheLayout

__all__ = ["BlockCacheCopy", "BlockCopyInfo", "CopyContext", "CopySegment", "CopySide"]


class CopySegment(NamedTuple):
    """One run of bytes that every block has on both sides; all numbers are bytes.

    Page ``j`` of block ``b`` stands at ``pool[start + b*block_stride + j*page_stride:][:nbytes]``.
    """

    src_pool: int
    src_start: int
    src_block_stride: int
    src_page_stride: int
    dst_pool: int
    dst_start: int
    dst_block_stride: int
    dst_page_stride: int
    nbytes: int
    num_pages: int


class CopySide(NamedTuple):
    """One side of a copy as its probe sees it."""

    backend: str
    memory_kind: str
    device: DeviceSpec
    layout: CacheLayout


@dataclass(frozen=True, slots=True)
class CopyContext:
    """Everything a copy primitive is built from. ``segments`` cover each block exactly once.

    ``group`` names the plan's group whose blocks or slots these are; None where the caller has no plan.
    """

    src_backend: CacheBackend[Any]
    src: CacheAllocation[Any]
    dst_backend: CacheBackend[Any]
    dst: CacheAllocation[Any]
    num_src_blocks: int
    num_dst_blocks: int
    segments: tuple[CopySegment, ...]
    group: str | None = None

    @property
    def same_allocation(self) -> bool:
        """Whether source and destination are one allocation (a block copy, not a swap)."""
        return self.src is self.dst

    @property
    def block_nbytes(self) -> int:
        """Bytes that one block moves."""
        return sum(segment.nbytes * segment.num_pages for segment in self.segments)


class BlockCacheCopy(ABC):
    """A copy bound to one pair of allocations.

    ``path`` names the way the bytes go, for stats and benchmarks; ``workspace_nbytes`` is the most
    temporary memory it takes. A copy that chooses its way call by call updates ``path`` and
    ``reason`` (why this way); ``slower`` is the reason when a faster way is there but cannot be
    taken, and is counted as a fallback.
    """

    path: str = "unnamed"
    reason: str = ""
    slower: str | None = None
    workspace_nbytes: int = 0

    @abstractmethod
    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Copy whole blocks, ordered after work queued on the caller's stream and after ``after``.

        ``pairs`` were checked by the engine and are not empty. A synchronous copy synchronises
        ``after``; one with a stream of its own makes that stream wait and never blocks the host.
        """

    def on_device(self, ids: Any) -> None:
        """Copy with device-resident ``int64[2, n]`` ids (sources, destinations), unchecked; -1 pads.

        Allocates nothing, records no event and can be captured in a graph.
        """
        raise EngineStateError(f"copy path {self.path!r} cannot take device-resident ids; use copy_blocks() instead")


@dataclass(frozen=True, slots=True)
class BlockCopyInfo:
    """How a plugin announces a copy primitive, whether or not it is a backend too.

    ``probe(src, dst)`` returns None or the reason why not. Of those that serve, the highest
    ``priority`` is used. ``probe_limit_s`` is the registry's to say (None: the usual one).
    """

    name: str
    priority: int
    probe: Callable[[CopySide, CopySide], str | None]
    build: Callable[[CopyContext], BlockCacheCopy]
    api_version: int = API_VERSION
    probe_limit_s: float | None = field(default=None, compare=False)
