"""Stream order: a delayed producer is seen, a delayed consumer is not overtaken, and the host does not wait."""

from __future__ import annotations

import time
from typing import Any

from cachecore.testing.arrays import Reader
from cachecore.testing.checks import Check, check
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import places_of
from cachecore.testing.levels.order_bench import DELAY_S, Bench, ready_bench
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_ATTEMPTS = 3
"""A busy machine may keep the host once; a wrong backend keeps it each time."""

_HOST_S = DELAY_S * 0.8
"""A host that was not kept takes microseconds."""

_NO_WAIT = "no wait_event() between the caller's stream and the stream that copies, or ids read on the host too early"


@check("order", "copy-sees-a-delayed-producer")
def copy_sees_producer(subject: Subject) -> str | None:
    """A block written late on the caller's stream is copied as written, on the default stream and on another."""
    with ready_bench(subject) as bench:
        for name, stream in (("the default stream", None), ("a side stream", bench.streams.new())):
            bench.put(1, 0x11)
            write = bench.streams.writer(bench.view, 1, bench.data(0x22))
            if stream is None:
                bench.streams.delay(DELAY_S)
                write()
                work = bench.engine.copy_blocks([(1, 2)])
            else:
                with bench.streams.on(stream):
                    bench.streams.delay(DELAY_S)
                    write()
                    work = bench.engine.copy_blocks([(1, 2)])
            work.synchronize()
            cause = f"{_NO_WAIT}; or another stream than the current one used"
            bench.expect(f"copy of a block that {name} writes late", bench.device(2), 0x22, cause)
    return None


@check("order", "copy-waits-for-a-delayed-consumer")
def copy_waits_for_consumer(subject: Subject) -> str | None:
    """A block still to be read on the caller's stream is not overwritten by a copy."""
    return _not_overtaken(subject, "copy_blocks", 0x44)


@check("order", "zero-waits-for-a-delayed-consumer")
def zero_waits_for_consumer(subject: Subject) -> str | None:
    """A block still to be read on the caller's stream is not zeroed."""
    return _not_overtaken(subject, "zero_blocks", 0x00)


@check("order", "swap-in-waits-for-a-delayed-consumer")
def swap_in_waits_for_consumer(subject: Subject) -> str | None:
    """A block still to be read on the caller's stream is not overwritten by a swap."""
    return _not_overtaken(subject, "swap_in", 0x55)


def _not_overtaken(subject: Subject, way: str, later: int) -> str | None:
    with ready_bench(subject) as bench:
        bench.put(3, 0x33)
        bench.put(4, 0x44)
        bench.put_host(0, 0x55)
        reader: Reader = bench.streams.reader(bench.view, 3)
        bench.streams.delay(DELAY_S)
        reader.queue()
        calls = {
            "copy_blocks": lambda: bench.engine.copy_blocks([(4, 3)]),
            "zero_blocks": lambda: bench.engine.zero_blocks([3]),
            "swap_in": lambda: bench.engine.swap_in([(0, 3)]),
        }
        work = calls[way]()
        work.synchronize()
        bench.streams.synchronize()
        cause = "work on another stream that does not wait for what the caller's stream has queued"
        bench.expect(f"a block read late, with {way}() onto it queued after", reader.result(), 0x33, cause)
        bench.expect(
            f"the block after {way}()", bench.device(3), later, "the work was lost, or was done before its turn"
        )
    return None


@check("order", "swap-out-sees-a-delayed-producer")
def swap_out_sees_producer(subject: Subject) -> str | None:
    """Device to host never reads before the producer has finished."""
    with ready_bench(subject) as bench:
        bench.put(1, 0x11)
        bench.put_host(2, 0x77)
        write = bench.streams.writer(bench.view, 1, bench.data(0x22))
        bench.streams.delay(DELAY_S)
        write()
        bench.engine.swap_out([(1, 2)]).synchronize()
        bench.expect("host block of a device block that was written late", bench.host(2), 0x22, _NO_WAIT)
    return None


@check("order", "done-means-done")
def done_means_done(subject: Subject) -> str | None:
    """A completion is not done while what it stands for waits, and the host is not kept meanwhile."""
    with ready_bench(subject) as bench:
        subject.need("async_copy")
        for attempt in range(_ATTEMPTS):
            bench.streams.delay(DELAY_S)
            started = time.perf_counter()
            work = bench.engine.swap_out([(1, 0)])
            done, busy = work.done(), bench.engine.host_blocks_in_flight()
            took = time.perf_counter() - started
            work.synchronize()
            if not work.done() or bench.engine.host_blocks_in_flight():
                raise Fault("after synchronize()", expected="done() True, nothing in flight", found="still in flight")
            if attempt < _ATTEMPTS - 1 and (took > _HOST_S or done or busy != {0}):
                continue
            if took > _HOST_S:
                raise Fault(
                    "the host's time in swap_out() behind delayed work",
                    expected="no wait: async_copy is declared",
                    found=f"{took * 1e3:.0f} ms of a delay of {DELAY_S * 1e3:.0f} ms",
                    cause="a synchronize() in the copy, pageable host memory, or ids uploaded from it",
                )
            if done or busy != {0}:
                raise Fault(
                    "a swap that waits behind delayed work",
                    expected="done() False, and host block 0 in flight",
                    found=f"done() {done}, in flight {set(busy) or 'nothing'}",
                    cause="a completion made before the work was queued, or an event of the wrong stream",
                )
            break
    return None


@check("order", "wait-orders-another-stream")
def wait_orders_a_stream(subject: Subject) -> str | None:
    """wait(stream) makes that stream wait, does not block the host, and wait() means the current one."""
    with ready_bench(subject) as bench:
        side = bench.streams.new()
        for form in ("wait(stream)", "wait()"):
            took = min(_consume_after_wait(bench, side, form) for _ in range(_ATTEMPTS))
            if took > _HOST_S and subject.reason_against("async_copy") is None:
                raise Fault(
                    f"the host's time in {form}",
                    expected="no wait",
                    found=f"{took * 1e3:.0f} ms",
                    cause="wait() synchronises the host",
                )
    return None


def _consume_after_wait(bench: Bench, side: Any, form: str) -> float:
    """Read on ``side`` what a delayed swap brings, after its completion; returns the host's time."""
    bench.put(3, 0x33)
    bench.put_host(1, 0x66)
    reader = bench.streams.reader(bench.view, 3)
    bench.streams.delay(DELAY_S)
    work = bench.engine.swap_in([(1, 3)])
    started = time.perf_counter()
    with bench.streams.on(side):
        if form == "wait()":
            work.wait()
        else:
            work.wait(side)
        reader.queue()
    took = time.perf_counter() - started
    bench.streams.synchronize()
    cause = "wait() does nothing, or waits on an event recorded too early"
    bench.expect(f"a consumer on a stream that called {form}", reader.result(), 0x66, cause)
    return took


@check("order", "swaps-of-one-host-block")
def swaps_of_one_host_block(subject: Subject) -> str | None:
    """A swap that touches a host block in flight comes after, in both directions."""
    with ready_bench(subject) as bench:
        bench.put(1, 0x11)
        bench.put(2, 0x22)
        bench.put_host(3, 0x77)
        bench.streams.delay(DELAY_S)
        works = [bench.engine.swap_out([(1, 3)]), bench.engine.swap_in([(3, 5)]), bench.engine.swap_out([(2, 3)])]
        for work in reversed(works):
            work.synchronize()
        cause = "the completions given as `after` are not waited for"
        bench.expect("swap_in of a host block that a swap_out still writes", bench.device(5), 0x11, cause)
        bench.expect("swap_out onto a host block that a swap_in still reads", bench.host(3), 0x22, cause)
    return None


@check("order", "read-and-write-in-turn")
def read_in_turn(subject: Subject) -> str | None:
    """read() comes after all queued work, and later work sees write()."""
    with ready_bench(subject) as bench:
        plan, allocation = bench.engine.plans.blocks[0], bench.engine.allocation()
        at = places_of(plan, allocation).payload(0, 0, 1, 0)
        bench.put(1, 0x11)
        write = bench.streams.writer(bench.view, 1, bench.data(0x22))
        bench.streams.delay(DELAY_S)
        write()
        found = subject.backend.read(allocation, at.pool, at.start, at.nbytes)
        bench.expect("read() of a block that is written late", found, 0x22, "read() does not synchronise the device")
        subject.backend.write(allocation, at.pool, at.start, bench.data(0x44)[: at.nbytes])
        bench.engine.copy_blocks([(1, 2)]).synchronize()
        found = bench.device(2)[: at.nbytes]
        bench.expect("copy after write()", found, 0x44, "write() queued where the copy does not wait for it")
    return None


@check("order", "close-waits")
def close_waits(subject: Subject) -> str | None:
    """Closing an engine waits for swaps and copies in flight: their memory goes."""
    with ready_bench(subject) as bench:
        bench.streams.delay(DELAY_S)
        work = bench.engine.swap_out([(1, 0)])
        bench.streams.delay(DELAY_S)
        copy = bench.engine.copy_blocks([(1, 2)])
        bench.engine.close()
        deadline = time.perf_counter() + DELAY_S / 4  # an event that is made when somebody asks takes a moment
        while not (done := work.done() and copy.done()) and time.perf_counter() < deadline:
            time.sleep(0.001)
        if not done:
            raise Fault(
                "work in flight when close() returned",
                expected="none",
                found="a copy or swap that still runs",
                cause="free() is not ordered after every stream that used the memory",
            )
    return None


CHECKS: tuple[Check, ...] = (
    copy_sees_producer,
    copy_waits_for_consumer,
    zero_waits_for_consumer,
    swap_in_waits_for_consumer,
    swap_out_sees_producer,
    done_means_done,
    wait_orders_a_stream,
    swaps_of_one_host_block,
    read_in_turn,
    close_waits,
)
