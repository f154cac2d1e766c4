"""Backends that are wrong about sleep: what is given back, and what comes back."""

from __future__ import annotations

from typing import ClassVar

from conformance.mutant import Mutant, WrongCopy, byte_subject
from conformance.sim import SimCopy, sim_subject

from cachecore import ByteBackend


class ReleaseKeepsTheMemory(ByteBackend):
    """Zeroes instead: another model would find no room."""

    def release(self, allocation):
        pass

    def restore(self, allocation):
        self.zero(allocation, range(allocation.num_entries))
        return allocation


class RestoresWhatWasFreed(ByteBackend):
    def restore(self, allocation):
        return allocation


class RestoresWithoutZeroing(ByteBackend):
    def restore(self, allocation):
        made = super().restore(allocation)
        for buffer in made.buffers:
            buffer[:] = b"\xee" * len(buffer)
        return made


class RestoresOneEntryLess(ByteBackend):
    def restore(self, allocation):
        made = self.allocate(allocation.layout, allocation.num_entries - 1, allocation.device)
        made.num_entries = allocation.num_entries
        return made


class LosesAPool(ByteBackend):
    """The last pool with bytes is the first one again."""

    def restore(self, allocation):
        made = super().restore(allocation)
        first, *others = [pool for pool in made.pools if len(pool.pool)] or [None]
        for pool in others[-1:]:
            if len(pool.pool) <= len(first.pool):
                pool.pool = first.pool[: len(pool.pool)]
        return made


class GroupsShareAnArena(ByteBackend):
    """Memory that is restored starts where the arena does, also for the second group."""

    arena = None

    def restore(self, allocation):
        made = super().restore(allocation)
        if self.arena is not None and not self.arena.freed:
            under = self.arena.pools[0].pool
            for pool in made.pools:
                if len(pool.pool) <= len(under):
                    pool.pool = under[: len(pool.pool)]
        self.arena = made
        return made


class LosesSomeEachSleep(ByteBackend):
    def release(self, allocation):
        before = self.taken_nbytes
        super().release(allocation)
        if 1 << 20 < before - self.taken_nbytes < 32 << 20:
            self.taken_nbytes += (before - self.taken_nbytes) // 2


class ReleaseEmptiesTheHostTier(ByteBackend):
    """Gives back all that it knows of."""

    known = ()

    def allocate(self, layout, num_entries, device, *, pinned=False):
        made = super().allocate(layout, num_entries, device, pinned=pinned)
        self.known = [*(one for one in self.known if not one.freed), made]
        return made

    def release(self, allocation):
        for one in self.known:
            if not one.freed:
                self.zero(one, range(one.num_entries))
        super().release(allocation)


class GivesBackAgainWhenClosedAsleep(ByteBackend):
    asleep = None

    def release(self, allocation):
        super().release(allocation)
        self.asleep = allocation

    def free(self, allocation):
        if self.asleep is allocation:
            self.taken_nbytes -= allocation.layout.reserved_nbytes(allocation.num_entries)
        super().free(allocation)


class FalseStableAddresses(ByteBackend):
    def capabilities(self):
        return {**super().capabilities(), "stable_addresses": False}


class CopyKeepsTheMemoryOfBefore(WrongCopy):
    """Pools looked up once for each host tier."""

    seen: ClassVar[list] = []

    def __init__(self, context):
        super().__init__(context)
        kept = next((pools for host, pools in self.seen if host is context.dst), context.src.pools)
        if context.dst.device.type == "cpu":
            self.seen.append((context.dst, kept))
        self.kept = kept

    def read(self, one, at, nbytes):
        return bytes(self.kept[one.src_pool].pool[at : at + nbytes])


class SlowerWayAfterWake(WrongCopy):
    """What made the fast way possible is not made again for the same host tier."""

    seen: ClassVar[list] = []

    def __init__(self, context):
        super().__init__(context)
        for direction, side in (("in", context.src), ("out", context.dst)):
            if side.device.type != "cpu":
                continue
            if any(before == direction and host is side for before, host in self.seen):
                self.path = "slow"
            self.seen.append((direction, side))


class SavesTooEarly(SimCopy):
    """Only the usual host tier is waited for."""

    def stream(self):
        if self.is_swap and self.context.num_dst_blocks == 1:
            return self.backend.swap_streams[self.direction]
        return super().stream()


def _mutant(backend, check, says):
    return Mutant(backend.__name__, lambda: byte_subject(backend), f"sleep/{check}", says)


SLEEP_MUTANTS = [
    _mutant(ReleaseKeepsTheMemory, "gives-memory-back[usual]", "release() keeps the buffers"),
    _mutant(RestoresWhatWasFreed, "level-1-keeps", "restore() returned an allocation freed"),
    _mutant(RestoresWithoutZeroing, "level-2-zeroes", "expected 0x00: restore() gives zeroed memory, found 0xee"),
    _mutant(RestoresOneEntryLess, "views-after-wake", "sizing would promise what is not there"),
    _mutant(LosesAPool, "level-1-keeps[aligned]", "pools that share memory after restore()"),
    _mutant(GroupsShareAnArena, "groups-sleep-as-one", "pools that share memory after restore()"),
    _mutant(LosesSomeEachSleep, "twenty-cycles[usual]", "keeps a buffer or a handle each time"),
    _mutant(ReleaseEmptiesTheHostTier, "asleep-is-refused", "gave back more than the allocation that it was given"),
    _mutant(GivesBackAgainWhenClosedAsleep, "closed-asleep[usual]", "gives its bytes back a second time"),
    _mutant(FalseStableAddresses, "stable-or-refused", "booleans instead of reasons"),
    Mutant(
        "CopyKeepsTheMemoryOfBefore",
        lambda: byte_subject(copy=CopyKeepsTheMemoryOfBefore),
        "sleep/moves-after-wake",
        "swap_out after wake()",
    ),
    Mutant(
        "SlowerWayAfterWake",
        lambda: byte_subject(copy=SlowerWayAfterWake),
        "sleep/moves-after-wake",
        "expected as before, wrong, wrong, wrong, found wrong, slow, slow",
    ),
    Mutant(
        "SavesTooEarly",
        lambda: sim_subject(copy=SavesTooEarly),
        "sleep/sees-a-delayed-producer[usual]",
        "contents saved before the caller's stream had written them",
    ),
]
