"""What sleep is for: the device has its memory back, each time, and neither waking nor closing asleep loses any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cachecore.backend import CacheAllocation
from cachecore.plan import BlockCachePlan
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import dump
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.levels.accounting import free_nbytes
from cachecore.testing.levels.sleep_bench import MEMORIES, Memory, sleeper
from cachecore.testing.samples import BLOCK_CASES
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_NBYTES = 64 << 20
_CYCLE_NBYTES = 8 << 20
_CYCLES = 20
_ATTEMPTS = 5
"""Others may use the device meanwhile."""


def _tells(subject: Subject) -> bool:
    """Whether what is free can be compared, rather than being what others take and give on the host."""
    return subject.device.type != "cpu" or Path("/proc/self/statm").exists()


def _sized(subject: Subject, nbytes: int) -> tuple[BlockCachePlan, int]:
    plan = subject.plan(BLOCK_CASES[1])
    return plan, max(8, nbytes // plan.block_nbytes())


def _touch(subject: Subject, allocation: CacheAllocation[Any]) -> None:
    """Write all of it: a host gives pages when they are written."""
    for pool, _ in enumerate(allocation.layout.pools):
        nbytes = allocation.layout.pool_nbytes(pool, allocation.num_entries)
        for start in range(0, nbytes, _CYCLE_NBYTES):
            subject.backend.write(allocation, pool, start, b"\x5a" * min(_CYCLE_NBYTES, nbytes - start))


@check("sleep", "gives-memory-back", MEMORIES)
def gives_memory_back(subject: Subject, case: Memory) -> str | None:
    """What is free rises by an engine's bytes when it sleeps, and falls when it wakes."""
    if not _tells(subject):
        raise Skipped("what is free on the host is shared with others, and this system does not tell what is whose")
    plan, blocks = _sized(subject, _NBYTES)
    size, seen = plan.reserved_nbytes(blocks), []
    for _ in range(_ATTEMPTS):
        with sleeper(subject, [plan], case, blocks) as engine:
            _touch(subject, engine.allocation())
            awake = free_nbytes(subject)
            engine.sleep(2)
            asleep = free_nbytes(subject)
            engine.wake()
            _touch(subject, engine.allocation())
            given, taken = asleep - awake, asleep - free_nbytes(subject)
        if given > size // 2 and taken > size // 2:
            return f"{given} of {size} bytes"
        seen.append((given, taken))
    if all(given <= size // 2 for given, _ in seen):
        cause = "release() keeps the buffers, or a copy, a view, a graph or the library's own cache keeps them"
    else:
        cause = "memory() does not count what restore() takes, or restore() takes none of it"
    raise Fault(
        f"free bytes when {size} sleep and wake",
        expected=f"about {size} more, and then as much less",
        found=", ".join(f"{given} more and {taken} less" for given, taken in seen),
        cause=cause,
    )


@check("sleep", "twenty-cycles", MEMORIES)
def twenty_cycles(subject: Subject, case: Memory) -> str | None:
    """Twenty sleeps at each level keep what level 1 keeps, and leave as much memory as before."""
    plan, blocks = _sized(subject, _CYCLE_NBYTES)
    with sleeper(subject, [plan], case, blocks) as engine:
        engine.sleep(2)
        engine.wake()
        subject.backend.write(engine.allocation(), 0, 0, b"\x11\x22\x33\x44")
        before, excess = free_nbytes(subject), engine.allocation().excess_nbytes
        for _ in range(_CYCLES):
            engine.sleep(1, [0])
            engine.wake()
        found = subject.backend.read(engine.allocation(), 0, 0, 4)
        if found != b"\x11\x22\x33\x44":
            raise Fault(f"block 0 after {_CYCLES} sleeps at level 1", expected="11223344", found=found.hex())
        for _ in range(_CYCLES):
            engine.sleep(2)
            engine.wake()
        lost = before - free_nbytes(subject)
        if engine.allocation().excess_nbytes != excess:
            raise Fault(
                "excess_nbytes after many sleeps",
                expected=f"{excess}, as before",
                found=engine.allocation().excess_nbytes,
            )
        if any(map(any, dump(subject.backend, engine.allocation()))):
            raise Fault(f"bytes after {_CYCLES} sleeps at level 2", expected="zeros", found="others")
    if lost > _CYCLES * _CYCLE_NBYTES // 4 and _tells(subject):
        raise Fault(
            f"bytes lost in {2 * _CYCLES} sleeps of {plan.reserved_nbytes(blocks)} bytes",
            expected="none",
            found=lost,
            cause="release() keeps a buffer or a handle each time, or restore() takes more than was released",
        )
    return f"{max(0, lost)} bytes"


@check("sleep", "closed-asleep", MEMORIES)
def closed_asleep(subject: Subject, case: Memory) -> str | None:
    """An engine closed while it sleeps gives back what it has, once, and nothing that it has not."""
    plan, blocks = _sized(subject, _NBYTES)
    size, seen = plan.reserved_nbytes(blocks), []
    for _ in range(_ATTEMPTS):
        before = free_nbytes(subject)
        with sleeper(subject, [plan], case, blocks) as engine:
            device, host = engine.allocation(), engine.allocation(host=True)
            engine.sleep(1, [0])
            engine.close()
            engine.close()
        if not (device.freed and host.freed):
            raise Fault("allocations of an engine closed asleep", expected="both tiers freed", found="one is not")
        del device, host, engine
        more = free_nbytes(subject) - before
        if abs(more) < size // 2 or not _tells(subject):
            return None
        seen.append(more)
    raise Fault(
        "free bytes after an engine was closed asleep",
        expected="as many as before it was opened",
        found=" and ".join(f"{more} more" if more > 0 else f"{-more} less" for more in seen),
        cause="free() of released memory gives its bytes back a second time, or leaves addresses reserved and mapped",
    )


CHECKS: tuple[Check, ...] = (gives_memory_back, twenty_cycles, closed_asleep)
