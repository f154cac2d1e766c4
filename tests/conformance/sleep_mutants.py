"""Backends that are wrong about sleep: what is given back, what comes back, and where."""

from __future__ import annotations

from typing import ClassVar

from conformance.mutant import Mutant, WrongCopy, byte_subject
from conformance.sim import SimCopy
from conformance.stable_sim import StableSim, stable_subject
from stable_bytes import StableBytes

from cachecore import ByteBackend, Region


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


class DeclaresStableAddresses(ByteBackend):
    """And has none."""

    def capabilities(self):
        return {**super().capabilities(), "stable_addresses": None}


class StableInNameOnly(DeclaresStableAddresses):
    """Memory as any other, which comes back as another object."""

    def allocate_stable(self, layout, num_entries, device):
        return self.allocate(layout, num_entries, device)


class MovesUnderTheObject(StableBytes):
    """The same object, over new buffers."""

    def restore(self, allocation):
        if id(allocation) in self.stable:
            made = self.allocate(allocation.layout, allocation.num_entries, allocation.device)
            allocation.buffers, allocation.pools = made.buffers, made.pools
            del self.away[id(allocation)]
            return allocation
        return super().restore(allocation)


class RegionsMove(MovesUnderTheObject):
    """As a device whose regions have addresses shows it."""

    def regions(self, allocation):
        start = id(allocation.buffers) << 21
        return tuple(Region(one.pool, start + (one.pool << 80), one.nbytes) for one in super().regions(allocation))


class ZeroesTheFirstPoolOnly(StableBytes):
    def restore(self, allocation):
        stale = [bytes(buffer) for buffer in allocation.buffers]
        made = super().restore(allocation)
        for number, data in enumerate(stale):
            if number and made is allocation:
                made.buffers[number][:] = data
        return made


class UnmapsAndKeepsTheMemory(StableBytes):
    """The addresses fault, and the handle of the memory is never released."""

    def release(self, allocation):
        before = self.taken_nbytes
        super().release(allocation)
        if id(allocation) in self.stable:
            self.taken_nbytes = before

    def restore(self, allocation):
        before = self.taken_nbytes
        made = super().restore(allocation)
        if made is allocation:
            self.taken_nbytes = before
        return made


class MapsMoreEachTime(StableBytes):
    def restore(self, allocation):
        made = super().restore(allocation)
        if made is allocation and (grown := allocation.layout.reserved_nbytes(allocation.num_entries)) < 32 << 20:
            self.taken_nbytes += grown
        return made


class StableClosedAsleep(StableBytes):
    """Closing gives back what sleep had given back already."""

    def free(self, allocation):
        self.away.pop(id(allocation), None)
        super().free(allocation)


class NegativeExcess(StableBytes):
    def allocate_stable(self, layout, num_entries, device):
        made = super().allocate_stable(layout, num_entries, device)
        made.excess_nbytes = -4096
        return made


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


class ReleasesTooEarly(StableSim):
    """Queued work writes into what is mapped next."""

    def release(self, allocation):
        StableBytes.release(self, allocation)


class MovesUnderTheGraph(MovesUnderTheObject, StableSim):
    """Graphs go on over the memory of before."""


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
    _mutant(DeclaresStableAddresses, "stable-or-refused", "allocate_stable() is not there"),
    _mutant(StableInNameOnly, "stable-addresses", "restore() is not overridden and allocates anew"),
    _mutant(RegionsMove, "stable-addresses", "though its memory stands elsewhere"),
    _mutant(MovesUnderTheObject, "stable-views", "though its memory stands elsewhere"),
    _mutant(ZeroesTheFirstPoolOnly, "stable-contents[aligned]", "a pool that is left out of it"),
    _mutant(UnmapsAndKeepsTheMemory, "gives-memory-back[stable]", "release() keeps the buffers"),
    _mutant(MapsMoreEachTime, "twenty-cycles[stable]", "restore() takes more than was released"),
    _mutant(StableClosedAsleep, "closed-asleep[stable]", "gives its bytes back a second time"),
    _mutant(NegativeExcess, "stable-addresses", "the bytes taken beyond the buffers, 0 or more, found -4096"),
    Mutant(
        "CopyKeepsTheMemoryOfBefore",
        lambda: byte_subject(copy=CopyKeepsTheMemoryOfBefore),
        "sleep/moves-after-wake",
        "swap_out after wake()",
    ),
    Mutant(
        "SavesTooEarly",
        lambda: stable_subject(copy=SavesTooEarly),
        "sleep/sees-a-delayed-producer[usual]",
        "contents saved before the caller's stream had written them",
    ),
    Mutant(
        "ReleasesTooEarly",
        lambda: stable_subject(ReleasesTooEarly),
        "sleep/waits-for-every-stream[stable]",
        "release() is not ordered after every stream",
    ),
    Mutant(
        "MovesUnderTheGraph",
        lambda: stable_subject(MovesUnderTheGraph),
        "sleep/stable-graph",
        "copy captured before a sleep at level 1, replayed after it",
    ),
]
