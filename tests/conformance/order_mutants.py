"""Asynchronous backends that are wrong: order, completions, device-resident ids."""

from __future__ import annotations

import time

from conformance.mutant import Mutant
from conformance.sim import SimBackend, SimCompletion, SimCopy, sim_subject

from cachecore import ByteBackend


class NoEvent(SimCopy):
    """Swaps start at once, whatever the caller's stream has queued."""

    def stream(self):
        return self.backend.swap_streams[self.direction] if self.is_swap else self.sim.current


class NoEventOut(NoEvent):
    """Only device to host does not wait."""

    def stream(self):
        return NoEvent.stream(self) if self.direction == "out" else SimCopy.stream(self)


class DefaultStream(SimCopy):
    """Copies on the default stream, whichever is current."""

    def stream(self):
        return SimCopy.stream(self) if self.is_swap else self.sim.default


class CopiesOnTheHost(SimCopy):
    """Reads and writes before the stream gets there."""

    def __call__(self, pairs, after=()):
        if self.is_swap:
            return super().__call__(pairs, after)
        self.move(list(pairs))
        return SimCompletion(self.sim, self.sim.current.record())


class ZeroesOnTheHost(SimBackend):
    def zero(self, allocation, entries):
        ByteBackend.zero(self, allocation, entries)
        return SimCompletion(self.sim, self.sim.current.record())


class _Early(SimCompletion):
    def done(self):
        return True


class CompletionTooEarly(SimCopy):
    """An event that is set when it is made."""

    def __call__(self, pairs, after=()):
        done = super().__call__(pairs, after)
        return _Early(self.sim, done.event) if self.is_swap else done


class BlocksTheHost(SimCopy):
    """Declared asynchronous, and waits inside."""

    def __call__(self, pairs, after=()):
        done = super().__call__(pairs, after)
        if self.is_swap:
            done.synchronize()
        return done


class _NoWait(SimCompletion):
    def wait(self, stream=None):
        """Nothing."""


class WaitDoesNothing(SimCopy):
    def __call__(self, pairs, after=()):
        return _NoWait(self.sim, super().__call__(pairs, after).event)


class _HostWait(SimCompletion):
    def wait(self, stream=None):
        self.event.wait()


class WaitBlocksTheHost(SimCopy):
    def __call__(self, pairs, after=()):
        return _HostWait(self.sim, super().__call__(pairs, after).event)


class IgnoresAfter(SimCopy):
    """Two swap streams that do not know of one another."""

    def __call__(self, pairs, after=()):
        return super().__call__(pairs)


class ReadsTooEarly(SimBackend):
    def read(self, allocation, pool, offset, nbytes):
        self.sim.default.record().wait(0.05)  # enough for quick work
        return ByteBackend.read(self, allocation, pool, offset, nbytes)


class FreesTooEarly(SimBackend):
    def free(self, allocation):
        ByteBackend.free(self, allocation)


class PaddingIsTheLastBlock(SimCopy):
    """-1 counts from the end."""

    def real_pairs(self, ids):
        last = self.context.num_dst_blocks
        return [(src % last, dst % last) for src, dst in zip(*ids.tolist(), strict=True)]


class PaddingIsBlockZero(SimCopy):
    """-1 is clamped."""

    def real_pairs(self, ids):
        return [(max(src, 0), max(dst, 0)) for src, dst in zip(*ids.tolist(), strict=True)]


class StopsAtPadding(SimCopy):
    """The first -1 ends the batch."""

    def real_pairs(self, ids):
        pairs = list(zip(*ids.tolist(), strict=True))
        end = next((at for at, pair in enumerate(pairs) if min(pair) < 0), len(pairs))
        return pairs[:end]


class PaddingBySourceOnly(SimCopy):
    """A destination of -1 is not looked at."""

    def real_pairs(self, ids):
        last = self.context.num_dst_blocks
        return [(src, dst % last) for src, dst in zip(*ids.tolist(), strict=True) if src >= 0]


class IdsTransposed(SimCopy):
    """Reads int64[2, n] as int64[n, 2]."""

    def real_pairs(self, ids):
        flat = [one for row in ids.tolist() for one in row]
        return [pair for pair in zip(flat[::2], flat[1::2], strict=True) if min(pair) >= 0]


class HidesDeviceIds(SimBackend):
    def capabilities(self):
        return {**super().capabilities(), "device_ids": "not on this device"}


class HidesAsyncCopies(SimBackend):
    def capabilities(self):
        return {**super().capabilities(), "async_copy": "copies run in the caller"}


class _SlowSwap(SimCopy):
    def __call__(self, pairs, after=()):
        if self.is_swap:
            self.backend.swap_streams[self.direction].queue(lambda: time.sleep(0.05))
        return super().__call__(pairs, after)


def _copy(copy, caught_by, says):
    return Mutant(copy.__name__, lambda: sim_subject(copy=copy), caught_by, says)


def _backend(backend, caught_by, says, copy=SimCopy):
    return Mutant(backend.__name__, lambda: sim_subject(backend, copy), caught_by, says)


ORDER_MUTANTS = [
    _copy(PaddingIsTheLastBlock, "device-ids/padding", "copy with device-resident ids"),
    _copy(PaddingIsBlockZero, "device-ids/padding", "copy with device-resident ids"),
    _copy(StopsAtPadding, "device-ids/padding", "block 8 did not arrive whole in block 0"),
    _copy(PaddingBySourceOnly, "device-ids/padding", "(3, -1)"),
    _copy(IdsTransposed, "device-ids/no-padding", "block 3 did not arrive whole in block 0"),
    _copy(NoEventOut, "order/swap-out-sees-a-delayed-producer", "no wait_event()"),
    _copy(NoEvent, "order/swap-in-waits-for-a-delayed-consumer", "does not wait for what"),
    _copy(DefaultStream, "order/copy-sees-a-delayed-producer", "a side stream writes late"),
    _copy(CopiesOnTheHost, "order/copy-sees-a-delayed-producer", "the default stream writes late"),
    _backend(ZeroesOnTheHost, "order/zero-waits-for-a-delayed-consumer", "zero_blocks() onto it"),
    _copy(CompletionTooEarly, "order/done-means-done", "a completion made before the work was queued"),
    _copy(BlocksTheHost, "order/done-means-done", "a synchronize() in the copy"),
    _copy(WaitDoesNothing, "order/wait-orders-another-stream", "wait() does nothing"),
    _copy(WaitBlocksTheHost, "order/wait-orders-another-stream", "wait() synchronises the host"),
    _copy(IgnoresAfter, "order/swaps-of-one-host-block", "`after` are not waited for"),
    _backend(ReadsTooEarly, "order/read-and-write-in-turn", "read() does not synchronise the device"),
    _backend(FreesTooEarly, "order/close-waits", "free() is not ordered after every stream"),
    _backend(HidesDeviceIds, "capabilities/device-ids", "a capability that works and is not declared"),
    _backend(HidesAsyncCopies, "capabilities/synchronous-means-done", "async_copy works and is not", _SlowSwap),
]
