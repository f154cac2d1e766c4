"""Backends that are wrong: memory, views, lifetime, honesty."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from conformance.mutant import Mutant, byte_subject

from cachecore import PINNED_HOST, AllocationError, ByteBackend, MemoryInfo, Region
from cachecore.reference import ByteTensor


class ShortAllocation(ByteBackend):
    """One entry less than asked for."""

    def allocate(self, layout, num_entries, device, *, pinned=False):
        made = super().allocate(layout, num_entries - 1, device, pinned=pinned)
        return replace(made, num_entries=num_entries)


class StaleBytes(ByteBackend):
    """Takes freed memory again as it is."""

    kept: dict

    def allocate(self, layout, num_entries, device, *, pinned=False):
        made = super().allocate(layout, num_entries, device, pinned=pinned)
        for new, old in zip(made.buffers, self.__dict__.setdefault("kept", {}).get(layout, ()), strict=False):
            new[: len(old)] = old[: len(new)]
        return made

    def free(self, allocation):
        self.__dict__.setdefault("kept", {})[allocation.layout] = allocation.buffers
        super().free(allocation)


class SharedPools(ByteBackend):
    """Pools cut from one buffer with a wrong offset."""

    def allocate(self, layout, num_entries, device, *, pinned=False):
        made = super().allocate(layout, num_entries, device, pinned=pinned)
        pools = list(made.pools)
        for index in range(1, len(pools)):
            if 0 < len(pools[index].pool) <= len(pools[0].pool):
                pools[index].pool = pools[0].pool[: len(pools[index].pool)]
        return made


class IgnoresBaseAlignment(ByteBackend):
    """Pools start where the buffer does."""

    def regions(self, allocation):
        return tuple(
            Region(one.pool, 0x7F0000000200 + (one.pool << 40), one.nbytes) for one in super().regions(allocation)
        )


class AdoptCopies(ByteBackend):
    def adopt(self, buffer, layout, num_entries):
        return super().adopt(bytearray(buffer), layout, num_entries)


class AdoptTakesAnything(ByteBackend):
    def adopt(self, buffer, layout, num_entries):
        missing = max(0, layout.nbytes(num_entries) - len(buffer))
        return super().adopt(bytearray(buffer) + bytes(missing) if missing else buffer, layout, num_entries)


class DishonestMemory(ByteBackend):
    """Always the same figure."""

    def memory(self, device):
        return MemoryInfo(1 << 33, 1 << 34)


class KeepsAfterRefusal(ByteBackend):
    """Takes pool by pool, and forgets what it has when one fails."""

    def allocate(self, layout, num_entries, device, *, pinned=False):
        if layout.reserved_nbytes(num_entries) > self.capacity_nbytes - self.taken_nbytes:
            self.taken_nbytes += layout.buffer_nbytes(0, num_entries)
        return super().allocate(layout, num_entries, device, pinned=pinned)


class RefusesWithoutFigures(ByteBackend):
    def allocate(self, layout, num_entries, device, *, pinned=False):
        try:
            return super().allocate(layout, num_entries, device, pinned=pinned)
        except AllocationError as error:
            raise AllocationError("out of memory") from error


class RefusesWithTheDriversError(ByteBackend):
    def allocate(self, layout, num_entries, device, *, pinned=False):
        try:
            return super().allocate(layout, num_entries, device, pinned=pinned)
        except AllocationError as error:
            raise OSError("driver error 2") from error


class ZeroClearsANeighbour(ByteBackend):
    def zero(self, allocation, entries):
        return super().zero(allocation, [*entries, *(entry - 1 for entry in entries if entry)])


class ZeroClearsTheFirstPoolOnly(ByteBackend):
    def zero(self, allocation, entries):
        whole = allocation.pools
        kept = [self.read(allocation, pool, 0, len(whole[pool].pool)) for pool in range(1, len(whole))]
        done = super().zero(allocation, entries)
        for pool, data in enumerate(kept, 1):
            self.write(allocation, pool, 0, data)
        return done


class NotPinned(ByteBackend):
    """Declares page-locked host memory, and gives other."""

    def capabilities(self):
        return {**super().capabilities(), "pinned_host": None}


class FalselyPinned(NotPinned):
    """Calls it page-locked, and it is not."""

    def allocate(self, layout, num_entries, device, *, pinned=False):
        made = super().allocate(layout, num_entries, device, pinned=pinned)
        if pinned:
            made.memory_kind = PINNED_HOST
        return made


class CannotPin(NotPinned):
    """Declares page-locked host memory, and has none to give."""

    def allocate(self, layout, num_entries, device, *, pinned=False):
        if pinned:
            raise AllocationError("no page-locked memory")
        return super().allocate(layout, num_entries, device, pinned=pinned)


class ReadDropsTheTail(ByteBackend):
    def read(self, allocation, pool, offset, nbytes):
        return super().read(allocation, pool, offset, nbytes // 16 * 16 - (nbytes > 4096))


class ViewIsACopy(ByteBackend):
    """contiguous() of a strided view."""

    def row_view(self, allocation, spec_index, spec, row):
        view = super().row_view(allocation, spec_index, spec, row)
        pool = memoryview(bytearray(view.pool))
        return ByteTensor(pool, view.start, view.shape, view.strides, view.itemsize)


class BytesInsteadOfElements(ByteBackend):
    """No view(dtype) of the pool's bytes."""

    def row_view(self, allocation, spec_index, spec, row):
        view = super().row_view(allocation, spec_index, spec, row)
        return ByteTensor(view.pool, view.start, view.shape, view.strides, 1)


class DenseStrides(ByteBackend):
    """Takes entries for dense."""

    def row_view(self, allocation, spec_index, spec, row):
        view = super().row_view(allocation, spec_index, spec, row)
        dense = prod(spec.shape) * spec.desc.itemsize
        return ByteTensor(view.pool, view.start, view.shape, (dense, *view.strides[1:]), view.itemsize)


class PagesForBlocks(ByteBackend):
    """Counts kernel pages where entries are meant."""

    def row_view(self, allocation, spec_index, spec, row):
        view = super().row_view(allocation, spec_index, spec, row)
        return ByteTensor(view.pool, view.start, (view.shape[0] - 1, *view.shape[1:]), view.strides, view.itemsize)


class NextRow(ByteBackend):
    """Rows numbered from one."""

    def row_view(self, allocation, spec_index, spec, row):
        return super().row_view(allocation, spec_index, spec, (row + 1) % spec.num_rows)


class NoWholeView(ByteBackend):
    def view(self, allocation, spec_index, spec):
        return None


class RowsWrapAround(ByteBackend):
    def row_view(self, allocation, spec_index, spec, row):
        return super().row_view(allocation, spec_index, spec, row % spec.num_rows)


class WritesAnywhere(ByteBackend):
    """No bound: what does not fit lands at the start."""

    def write(self, allocation, pool, offset, data):
        end = len(allocation.pools[pool].pool)
        for at, byte in enumerate(data):
            allocation.pools[pool].pool[(offset + at) % end] = byte


class ReadsAnywhere(ByteBackend):
    def read(self, allocation, pool, offset, nbytes):
        data = super().read(allocation, pool, offset, min(nbytes, max(0, len(allocation.pools[pool].pool) - offset)))
        return data.ljust(nbytes, b"\xee")


class ServesAnyPlan(ByteBackend):
    """Gives no reason, only False."""

    def serves_layout(self, layout, policy, version):
        return super().serves_layout(layout, policy, version) and False


class GivesBackTwice(ByteBackend):
    def free(self, allocation):
        self.taken_nbytes -= allocation.layout.reserved_nbytes(allocation.num_entries)
        super().free(replace(allocation, owned=False))
        allocation.freed = True
        allocation.buffers = allocation.pools = ()


class FreeTwiceBreaks(ByteBackend):
    def free(self, allocation):
        if allocation.freed:
            raise KeyError("no such handle")
        super().free(allocation)


class Leaks(ByteBackend):
    """Every free() forgets a little."""

    def free(self, allocation):
        before = self.taken_nbytes
        super().free(allocation)
        if 1 << 20 < before - self.taken_nbytes < 64 << 20:
            self.taken_nbytes += (before - self.taken_nbytes) // 2


class FreedStaysReadable(ByteBackend):
    def read(self, allocation, pool, offset, nbytes):
        return bytes(nbytes) if allocation.freed else super().read(allocation, pool, offset, nbytes)


class KeepsTheHostTier(ByteBackend):
    def free(self, allocation):
        if allocation.device.type != "cpu":
            super().free(allocation)


class UndeclaredCapability(ByteBackend):
    def capabilities(self):
        told = dict(super().capabilities())
        del told["graph_capture"]
        return told


class BooleanCapability(ByteBackend):
    def capabilities(self):
        return {**super().capabilities(), "graph_capture": False}


class LyingCapability(ByteBackend):
    """Declares device-resident ids; its copy has none."""

    def capabilities(self):
        return {**super().capabilities(), "device_ids": None}


class AnotherName(ByteBackend):
    name = "octets"


class AnotherPolicyVersion(ByteBackend):
    def __init__(self):
        super().__init__()
        self.policy.version = "other"


def _mutant(backend, caught_by, says):
    return Mutant(backend.__name__, lambda: byte_subject(backend), caught_by, says)


BACKEND_MUTANTS = [
    _mutant(AnotherName, "discovery/backend-loads", "backend.name: expected 'bytes', found 'octets'"),
    _mutant(AnotherPolicyVersion, "discovery/backend-loads", "plans made on a laptop would be refused here"),
    _mutant(ShortAllocation, "memory/exact", "sizing would promise what is not there"),
    _mutant(StaleBytes, "memory/zeroed", "another sequence's bytes"),
    _mutant(SharedPools, "memory/every-byte[aligned]", "pools that share memory"),
    _mutant(IgnoresBaseAlignment, "memory/base-alignment", "base_alignment ignored"),
    _mutant(AdoptCopies, "memory/adopt", "adopt() copied the buffer"),
    _mutant(AdoptTakesAnything, "memory/adopt-too-small", "expected an AllocationError"),
    _mutant(DishonestMemory, "memory/accounts", "a constant"),
    _mutant(KeepsAfterRefusal, "memory/refused-whole", "was not given back when the second failed"),
    _mutant(RefusesWithoutFigures, "memory/refused-whole", "found out of memory"),
    _mutant(RefusesWithTheDriversError, "memory/refused-whole", "expected an AllocationError, found OSError"),
    _mutant(ZeroClearsANeighbour, "memory/zero", "expected 0x"),
    _mutant(ZeroClearsTheFirstPoolOnly, "memory/zero[kv-and-index]", "found 0x"),
    _mutant(NotPinned, "memory/kinds", "expected host:pinned, found host"),
    _mutant(FalselyPinned, "memory/kinds", "not page-locked"),
    _mutant(CannotPin, "memory/kinds", "memory, as pinned_host is declared, found no page-locked memory"),
    _mutant(ReadDropsTheTail, "memory/every-byte", "read() drops the tail"),
    _mutant(ViewIsACopy, "views/write-reaches-the-pool", "a strided view returns a copy"),
    _mutant(BytesInsteadOfElements, "views/shape-dtype-strides", "bfloat16, 2 bytes an element, found items of 1"),
    _mutant(DenseStrides, "views/shape-dtype-strides", "entries taken to be dense"),
    _mutant(PagesForBlocks, "views/shape-dtype-strides", "kernel pages and blocks mixed up"),
    _mutant(NextRow, "views/write-reaches-the-pool", "cache 'k_cache' row 0"),
    _mutant(NoWholeView, "views/shape-dtype-strides", "its rows are equally spaced"),
    _mutant(RowsWrapAround, "views/no-such-row", "row_view() of row 2 of 2"),
    _mutant(GivesBackTwice, "lifetime/free-twice", "free bytes after freeing twice"),
    _mutant(FreeTwiceBreaks, "lifetime/free-twice", "found KeyError('no such handle')"),
    _mutant(Leaks, "lifetime/fifty-cycles", "free() keeps a buffer"),
    _mutant(FreedStaysReadable, "lifetime/freed-memory-is-refused", "pools kept after free()"),
    _mutant(KeepsTheHostTier, "lifetime/close", "expected both tiers freed"),
    _mutant(WritesAnywhere, "errors/outside-a-pool", "write() of 8 bytes"),
    _mutant(ReadsAnywhere, "errors/outside-a-pool", "bytes of something else"),
    _mutant(ServesAnyPlan, "errors/another-policys-plan", "None or the reason why not"),
    _mutant(UndeclaredCapability, "capabilities/declared", "'graph_capture'"),
    _mutant(BooleanCapability, "capabilities/declared", "booleans instead of reasons"),
    _mutant(LyingCapability, "device-ids/no-padding", "the copy that was chosen has no on_device()"),
]
