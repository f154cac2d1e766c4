"""Sleep and the streams: what is queued before it is kept, and nothing lands in the memory of afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cachecore.testing.checks import Check, check
from cachecore.testing.levels.order_bench import DELAY_S, Bench, ready_bench
from cachecore.testing.levels.sleep_bench import MEMORIES, Memory
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]


@contextmanager
def late_write(bench: Bench) -> Iterator[None]:
    """Block 1 holds 0x11, and 0x22 once a side stream gets to it; that stream is the caller's meanwhile."""
    bench.put(1, 0x11)
    write, side = bench.streams.writer(bench.view, 1, bench.data(0x22)), bench.streams.new()
    with bench.streams.on(side):
        bench.streams.delay(DELAY_S)
        write()
        yield


@check("sleep", "sees-a-delayed-producer", MEMORIES)
def sees_producer(subject: Subject, case: Memory) -> str | None:
    """Level 1 keeps a block as the caller's stream writes it late."""
    with ready_bench(subject, stable_addresses=case.stable) as bench:
        with late_write(bench):
            bench.engine.sleep(1, [1])
            bench.engine.wake()
        bench.look_again()
        cause = "contents saved before the caller's stream had written them"
        bench.expect("a block that a side stream writes late, after a sleep", bench.device(1), 0x22, cause)
    return None


@check("sleep", "waits-for-every-stream", MEMORIES)
def waits_for_streams(subject: Subject, case: Memory) -> str | None:
    """Memory is not taken from under queued work: a late write of before does not show afterwards."""
    with ready_bench(subject, stable_addresses=case.stable) as bench:
        with late_write(bench):
            pass
        bench.engine.sleep(2)
        bench.engine.wake()
        bench.streams.synchronize()
        bench.look_again()
        cause = "release() is not ordered after every stream that used the memory"
        bench.expect(
            "a block after a sleep at level 2, written late by a side stream before", bench.device(1), 0, cause
        )
    return None


CHECKS: tuple[Check, ...] = (sees_producer, waits_for_streams)
