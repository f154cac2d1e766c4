"""Backends that are wrong about addresses that outlast a sleep."""

from __future__ import annotations

from conformance.mutant import Mutant, byte_subject
from conformance.stable_sim import StableSim, stable_subject
from stable_bytes import StableBytes

from cachecore import ByteBackend, Region


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


class ReleasesTooEarly(StableSim):
    """Queued work writes into what is mapped next."""

    def release(self, allocation):
        StableBytes.release(self, allocation)


class MovesUnderTheGraph(MovesUnderTheObject, StableSim):
    """Graphs go on over the memory of before."""


def _mutant(backend, check, says):
    return Mutant(backend.__name__, lambda: byte_subject(backend), f"sleep/{check}", says)


STABLE_MUTANTS = [
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
