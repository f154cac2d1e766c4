"""One group at run time: its two allocations, its three copies, and what is still in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from cachecore.answers import check_completion, survived
from cachecore.asking import told
from cachecore.backend import COMPLETED, CacheBackend, Completion
from cachecore.blocks import BlockPairs, PairsLike
from cachecore.copying import BlockCacheCopy, BlockCopyInfo
from cachecore.device import DeviceSpec
from cachecore.errors import BlockIndexError, EngineStateError, PluginError
from cachecore.group_memory import GroupMemory
from cachecore.group_plan import GroupPlan
from cachecore.in_flight import InFlight
from cachecore.meaning import several, whole
from cachecore.stats import CopyStats, GroupStats
from cachecore.transfer import ResolvedCopy

__all__ = ["EngineGroup"]

A = TypeVar("A")


class EngineGroup(GroupMemory[A]):
    """Memory and movement of one group: blocks or slots, as its plan says.

    Takes memory when made; whatever it took is freed when making it fails. ``stable_addresses`` keeps
    what was made over the memory, copies and captured graphs, valid over a sleep.
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
        self._in_flight = InFlight(num_host_blocks)
        self._resolved: dict[str, ResolvedCopy] = {}
        self._resting: dict[str, ResolvedCopy] = {}
        self._stats: dict[str, CopyStats] = {}
        self._proved: set[type] = {type(COMPLETED)}
        self._barred = f"group {plan.name!r} is closed; open another engine with open_engine()"
        super().__init__(
            plan,
            num_blocks,
            num_host_blocks,
            backend=backend,
            copies=copies,
            device=device,
            stable_addresses=stable_addresses,
        )
        try:
            self._resolve()
        except BaseException:
            self.free()
            raise

    def _resolve(self) -> None:
        ends = {"copy": (self.device, self.device)}
        if self.host is not None:
            ends.update(swap_out=(self.device, self.host), swap_in=(self.host, self.device))
        for direction, (src, dst) in ends.items():
            found = self._resolved[direction] = self.resolve(src, dst)
            before, copy = self._stats.get(direction), found.copy
            counts = (0, 0) if before is None else (before.num_calls, before.num_blocks)
            told_by = direction, copy.path, found.record, found.fallback, found.passed_over
            self._stats[direction] = CopyStats(*told_by, found.block_nbytes, copy.workspace_nbytes, *counts)

    def copy(self, pairs: PairsLike) -> Completion:
        """Copy blocks within the device allocation."""
        checked = BlockPairs.of(pairs)
        checked.check_range(num_src=self.num_blocks, num_dst=self.num_blocks, what=self.plan.unit)
        checked.check_disjoint(self.plan.unit)
        return self._run("copy", checked, ())

    def copy_on_device(self, ids: Any) -> None:
        """Copy with device-resident ids, unchecked."""
        way = self._way("copy")
        try:
            way.on_device(ids)
        except SystemExit as error:
            raise self._ended("copy", error) from error
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
        return self._in_flight.blocks()

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
        self._way("copy")  # raises when asleep or closed
        if not listed:
            return COMPLETED
        per_block = self.plan.num_entries(1)
        entries = [block * per_block + entry for block in listed for entry in range(per_block)]
        who = f"backend {self._backend.name!r}: zero()"
        work = survived(who, partial(self._backend.zero, self.device, entries))
        if type(work) not in self._proved:
            self._prove(work, who)
        return work

    def settle(self) -> None:
        """Wait for transfers; all of them, then the first one that failed is told."""
        failed: list[BaseException] = []
        for work in self._in_flight.works():
            try:
                survived(f"group {self.plan.name!r}: a transfer", work.synchronize)
            except BaseException as error:  # noqa: BLE001  # Ctrl-C too: the others are waited for, then it is told
                failed.append(error)
        self._in_flight.clear()
        if failed:
            raise failed[0]

    def sleep(self) -> None:
        """Give the device its memory back; the host tier stays."""
        self._barred = f"group {self.plan.name!r} is asleep; call wake() of its engine"
        if self.stable_addresses:
            self._resting = dict(self._resolved)
        self._resolved.clear()
        self.release()

    def wake(self) -> bool:
        """Take zeroed device memory again; whether every address is as before. A failure leaves it asleep."""
        same = self.restore()
        try:
            if same and self._resting:
                self._resolved = self._resting
            else:
                self._resolve()
        except BaseException:
            self._resolved.clear()  # of copies to memory that moved not all may be there
            self.sleep()
            raise
        self._resting = {}
        return same

    def free(self) -> None:
        """Wait for transfers, then give all memory back; the first one that failed is told last."""
        self._barred = f"group {self.plan.name!r} is closed; open another engine with open_engine()"
        try:
            self.settle()
        finally:
            self._resolved.clear()
            self._resting.clear()
            super().free()

    def stats(self) -> GroupStats:
        """A snapshot."""
        host, awake = self.host, bool(self._resolved)
        reserved = self.plan.reserved_nbytes(self.num_blocks) + self.device.excess_nbytes
        return GroupStats(
            group=self.plan.name,
            num_blocks=self.num_blocks,
            num_host_blocks=self.num_host_blocks,
            nbytes=self.plan.nbytes(self.num_blocks) if awake else 0,
            reserved_nbytes=reserved if awake else 0,
            host_nbytes=self.plan.nbytes(self.num_host_blocks, host=True),
            host_reserved_nbytes=self.plan.reserved_nbytes(self.num_host_blocks, host=True),
            memory_kind=self.device.memory_kind,
            host_memory_kind=None if host is None else host.memory_kind,
            copies=tuple(self._copy_stats(direction) for direction in self._stats),
            stable_addresses=self.stable_addresses,
        )

    def _copy_stats(self, direction: str) -> CopyStats:
        """A snapshot with the way that the last call took, for copies that choose anew each time."""
        stats, found = self._stats[direction], self._resolved.get(direction)
        if found is None:  # asleep
            return replace(stats)
        copy = found.copy
        slower = copy.slower is not None
        return replace(stats, path=copy.path, reason=copy.slower or copy.reason, fallback=stats.fallback or slower)

    def _way(self, direction: str) -> BlockCacheCopy:
        found = self._resolved.get(direction)
        if found is None:
            raise EngineStateError(self._barred, group=self.plan.name)
        return found.copy

    def _swap_pairs(self, pairs: PairsLike) -> BlockPairs:
        if self.num_host_blocks == 0:
            raise EngineStateError(
                f"group {self.plan.name!r} has no host tier; open the engine with host_counts= to swap",
                group=self.plan.name,
            )
        return BlockPairs.of(pairs)

    def _swap(self, direction: str, pairs: BlockPairs, host_blocks: Sequence[int]) -> Completion:
        work = self._run(direction, pairs, self._in_flight.earlier(host_blocks))
        if work is not COMPLETED:
            self._in_flight.add(host_blocks, work)
        return work

    def _run(self, direction: str, pairs: BlockPairs, after: Sequence[Completion]) -> Completion:
        way = self._way(direction)
        if not len(pairs):
            return COMPLETED
        try:
            work = way(pairs, after)
        except SystemExit as error:
            raise self._ended(direction, error) from error
        if type(work) not in self._proved:
            self._prove(work, f"block copy {self._resolved[direction].record!r}")
        stats = self._stats[direction]
        stats.num_calls += 1
        stats.num_blocks += len(pairs)
        return work

    def _prove(self, work: object, who: str) -> None:
        """Once for each type of completion, so that a call costs a look-up."""
        check_completion(work, who)
        self._proved.add(type(work))

    def _ended(self, direction: str, error: SystemExit) -> PluginError:
        return PluginError(
            f"block copy {self._resolved[direction].record!r} raised {told(error)}", group=self.plan.name
        )
