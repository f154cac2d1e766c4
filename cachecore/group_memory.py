"""The memory of one group: its device allocation and its host tier, taken, released and taken again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from cachecore.answers import (
    allocation_of,
    check_completion,
    reason_against,
    restored,
    stable_allocation_of,
    survived,
    views_of,
)
from cachecore.backend import CacheAllocation, CacheBackend, Completion
from cachecore.blocks import BlockPairs
from cachecore.copying import BlockCopyInfo, CopyContext
from cachecore.device import DeviceSpec
from cachecore.group_plan import GroupPlan
from cachecore.transfer import ResolvedCopy, build_copy, resolve_copy
from cachecore.view import SpecViews

__all__ = ["GroupMemory", "refuse_duplicate"]

A = TypeVar("A")


class GroupMemory(Generic[A]):
    """Two allocations of one plan, and how their bytes are seen and copied.

    Takes memory when made; whatever it took is freed when making it fails.
    """

    def __init__(
        self,
        plan: GroupPlan,
        num_blocks: int,
        num_host_blocks: int,
        *,
        backend: CacheBackend[A],
        copies: Sequence[BlockCopyInfo],
        device: DeviceSpec,
        stable_addresses: bool = False,
    ) -> None:
        self.plan = plan
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.stable_addresses = stable_addresses
        self._backend = backend
        self._copies = tuple(copies)
        self.host: CacheAllocation[A] | None = None
        take = stable_allocation_of if stable_addresses else allocation_of
        self.device = take(backend, plan.layout, plan.num_entries(num_blocks), device)
        if num_host_blocks:
            try:
                self.host = self.take_host(num_host_blocks)
            except BaseException:
                self.drop(self.device)
                raise

    @property
    def backend(self) -> CacheBackend[A]:
        """The backend that owns both allocations."""
        return self._backend

    def take_host(self, num_blocks: int) -> CacheAllocation[A]:
        """Host memory in the plan's host layout, page-locked where the backend can."""
        pinned = reason_against(self._backend, "pinned_host") is None
        entries = self.plan.num_entries(num_blocks, host=True)
        return allocation_of(self._backend, self.plan.host_layout, entries, DeviceSpec("cpu"), pinned=pinned)

    def drop(self, allocation: CacheAllocation[A]) -> None:
        """Free one allocation."""
        survived(f"backend {self._backend.name!r}: free()", partial(self._backend.free, allocation))

    def release(self) -> None:
        """Give the device its memory back; what was made over it is void, unless its addresses are stable."""
        survived(f"backend {self._backend.name!r}: release()", partial(self._backend.release, self.device))

    def restore(self) -> bool:
        """Take zeroed device memory again; whether every address is as before."""
        before, self.device = self.device, restored(self._backend, self.device)
        return self.device is before

    def free(self) -> None:
        """Give all memory back."""
        try:
            if self.host is not None:
                self.drop(self.host)
        finally:
            self.drop(self.device)

    def views(self) -> list[SpecViews[A]]:
        """Every spec with its tensor and rows, made now."""
        return views_of(self._backend, self.device, self.plan)

    def build_copy(self, context: CopyContext) -> ResolvedCopy:
        """A copy of other runs than whole blocks or slots, from the same ranked records."""
        return build_copy(self._copies, context)

    def resolve(self, src: CacheAllocation[A], dst: CacheAllocation[A]) -> ResolvedCopy:
        """The copy of whole blocks or slots between two allocations of the plan."""
        return resolve_copy(self._copies, self.plan, (self._backend, src), (self._backend, dst))

    def move(self, src: CacheAllocation[A], dst: CacheAllocation[A], pairs: BlockPairs) -> Completion:
        """Copy blocks once between two allocations of the plan, apart from the group's own traffic."""
        found = self.resolve(src, dst)
        who = f"block copy {found.record!r}"
        work = survived(who, partial(found.copy, pairs))
        check_completion(work, who)
        return work

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_duplicate("a group of an engine")


def refuse_duplicate(what: str) -> NoReturn:
    """A copy would take the memory twice, and a pickle cannot hold it."""
    raise TypeError(
        f"{what} owns device memory and cannot be copied or pickled; pickle its plans and open another with "
        "open_engine(), or copy blocks with copy_blocks()"
    )
