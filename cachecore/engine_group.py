"""One group at run time: its two allocations, its three copies, and what is still in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from cachecore.backend import COMPLETED, CacheAllocation, CacheBackend, Completion
from cachecore.blocks import BlockPairs, PairsLike
from cachecore.copying import BlockCacheCopy, BlockCopyInfo, CopyContext
from cachecore.device import DeviceSpec
from cachecore.errors import BlockIndexError, EngineStateError
from cachecore.group_plan import GroupPlan
from cachecore.meaning import several, whole
from cachecore.stats import CopyStats, GroupStats
from cachecore.transfer import ResolvedCopy, build_copy, resolve_copy
from cachecore.view import SpecViews

__all__ = ["EngineGroup"]

A = TypeVar("A")


class EngineGroup(Generic[A]):
    """Memory and movement of one group: blocks or slots, as its plan says.

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
    ) -> None:
        self.plan = plan
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self._backend = backend
        self._copies = tuple(copies)
        self._in_flight: dict[int, Completion] = {}
        self.host: CacheAllocation[A] | None = None
        self._resolved: dict[str, ResolvedCopy] = {}
        self._stats: dict[str, CopyStats] = {}
        self.device = backend.allocate(plan.layout, plan.num_entries(num_blocks), device)
        try:
            if num_host_blocks:
                pinned = backend.capabilities().get("pinned_host", "not declared") is None
                entries = plan.num_entries(num_host_blocks, host=True)
                self.host = backend.allocate(plan.host_layout, entries, DeviceSpec("cpu"), pinned=pinned)
            self._resolve()
        except BaseException:
            self.free()
            raise

    def _resolve(self) -> None:
        device = self._backend, self.device
        ends = {"copy": (device, device)}
        if self.host is not None:
            host = self._backend, self.host
            ends.update(swap_out=(device, host), swap_in=(host, device))
        for direction, (src, dst) in ends.items():
            found = self._resolved[direction] = resolve_copy(self._copies, self.plan, src, dst)
            self._stats[direction] = CopyStats(
                direction,
                found.copy.path,
                found.record,
                found.fallback,
                found.passed_over,
                found.block_nbytes,
                found.copy.workspace_nbytes,
            )

    @property
    def backend(self) -> CacheBackend[A]:
        """The backend that owns both allocations."""
        return self._backend

    def build_copy(self, context: CopyContext) -> ResolvedCopy:
        """A copy of other runs than whole blocks or slots, from the same ranked records."""
        return build_copy(self._copies, context)

    def views(self) -> list[SpecViews[A]]:
        """Every spec with its tensor and rows, made now."""
        backend, device = self._backend, self.device
        return [
            SpecViews(
                spec,
                backend.view(device, index, spec),
                tuple(backend.row_view(device, index, spec, row) for row in range(spec.num_rows)),
            )
            for index, spec in enumerate(self.plan.specs)
        ]

    def copy(self, pairs: PairsLike) -> Completion:
        """Copy blocks within the device allocation."""
        checked = BlockPairs.of(pairs)
        checked.check_range(num_src=self.num_blocks, num_dst=self.num_blocks, what=self.plan.unit)
        checked.check_disjoint(self.plan.unit)
        return self._run("copy", checked, ())

    def copy_on_device(self, ids: Any) -> None:
        """Copy with device-resident ids, unchecked."""
        self._way("copy").on_device(ids)
        self._stats["copy"].num_calls += 1

    def swap_out(self, pairs: PairsLike) -> Completion:
        """Device blocks to host blocks."""
        checked = self._swap_pairs(pairs)
        checked.check_range(num_src=self.num_blocks, num_dst=self.num_host_blocks, what=self.plan.unit)
        return self._swap("swap_out", checked, checked.dst)

    def swap_in(self, pairs: PairsLike) -> Completion:
        """Host blocks to device blocks."""
        checked = self._swap_pairs(pairs)
        checked.check_range(num_src=self.num_host_blocks, num_dst=self.num_blocks, what=self.plan.unit)
        return self._swap("swap_in", checked, checked.src)

    def host_blocks_in_flight(self) -> frozenset[int]:
        """Host blocks that a transfer still reads or writes."""
        self._in_flight = {block: work for block, work in self._in_flight.items() if not work.done()}
        return frozenset(self._in_flight)

    def zero(self, blocks: Sequence[int]) -> Completion:
        """Zero whole blocks of the device allocation."""
        unit = self.plan.unit
        listed = [whole(block, f"a {unit}") for block in several(blocks, f"{unit}s to zero")]
        for block in listed:
            if not 0 <= block < self.num_blocks:
                raise BlockIndexError(
                    f"{unit} {block} is out of range; group {self.plan.name!r} has {self.num_blocks}, numbered from 0",
                    block=block,
                    limit=self.num_blocks,
                )
        if not listed:
            return COMPLETED
        per_block = self.plan.num_entries(1)
        entries = [block * per_block + entry for block in listed for entry in range(per_block)]
        return self._backend.zero(self.device, entries)

    def free(self) -> None:
        """Wait for transfers, then give all memory back; the first one that failed is told last."""
        failed: list[BaseException] = []
        for work in {id(work): work for work in self._in_flight.values()}.values():
            try:
                work.synchronize()
            except BaseException as error:  # noqa: BLE001  # Ctrl-C too: memory is given back below, then it is told
                failed.append(error)
        self._in_flight.clear()
        self._resolved.clear()
        try:
            if self.host is not None:
                self._backend.free(self.host)
        finally:
            self._backend.free(self.device)
        if failed:
            raise failed[0]

    def stats(self) -> GroupStats:
        """A snapshot."""
        host = self.host
        return GroupStats(
            group=self.plan.name,
            num_blocks=self.num_blocks,
            num_host_blocks=self.num_host_blocks,
            nbytes=self.plan.nbytes(self.num_blocks),
            reserved_nbytes=self.plan.reserved_nbytes(self.num_blocks),
            host_nbytes=self.plan.nbytes(self.num_host_blocks, host=True),
            host_reserved_nbytes=self.plan.reserved_nbytes(self.num_host_blocks, host=True),
            memory_kind=self.device.memory_kind,
            host_memory_kind=None if host is None else host.memory_kind,
            copies=tuple(self._copy_stats(direction) for direction in self._stats),
        )

    def _copy_stats(self, direction: str) -> CopyStats:
        """A snapshot with the way that the last call took, for copies that choose anew each time."""
        stats, copy = self._stats[direction], self._way(direction)
        slower = copy.slower is not None
        return replace(stats, path=copy.path, reason=copy.slower or copy.reason, fallback=stats.fallback or slower)

    def _way(self, direction: str) -> BlockCacheCopy:
        found = self._resolved.get(direction)
        if found is None:
            raise EngineStateError(
                f"group {self.plan.name!r} is closed; open another engine with open_engine()", group=self.plan.name
            )
        return found.copy

    def _swap_pairs(self, pairs: PairsLike) -> BlockPairs:
        if self.num_host_blocks == 0:
            raise EngineStateError(
                f"group {self.plan.name!r} has no host tier; open the engine with host_counts= to swap",
                group=self.plan.name,
            )
        return BlockPairs.of(pairs)

    def _swap(self, direction: str, pairs: BlockPairs, host_blocks: Sequence[int]) -> Completion:
        earlier = {id(work): work for block in host_blocks if (work := self._in_flight.get(block)) is not None}
        work = self._run(direction, pairs, [one for one in earlier.values() if not one.done()])
        if not work.done():
            self._in_flight.update(dict.fromkeys(host_blocks, work))
        return work

    def _run(self, direction: str, pairs: BlockPairs, after: Sequence[Completion]) -> Completion:
        way = self._way(direction)
        if not len(pairs):
            return COMPLETED
        work = way(pairs, after)
        stats = self._stats[direction]
        stats.num_calls += 1
        stats.num_blocks += len(pairs)
        return work
