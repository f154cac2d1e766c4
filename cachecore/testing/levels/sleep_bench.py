"""What the sleep checks work on: engines over usual and over stable memory, and what must stand in them afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cachecore.backend import CacheAllocation
from cachecore.engine import CacheEngine
from cachecore.errors import EngineStateError
from cachecore.plan import BlockCachePlan
from cachecore.state_plan import StateCachePlan
from cachecore.testing.contents import after_copy, check_same, dump, fill, first_difference
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import places_of
from cachecore.testing.places import Payload, Places
from cachecore.testing.subject import Subject

__all__ = ["MEMORIES", "NUM_BLOCKS", "STABLE", "USUAL", "Memory", "over_a_sleep", "sleeper", "views_of"]

NUM_BLOCKS = 9
_NUM_HOST_BLOCKS = 7
_KEY = "stable_addresses"

Plan = BlockCachePlan | StateCachePlan
Contents = Sequence[bytes | bytearray]


@dataclass(frozen=True, slots=True)
class Memory:
    """How the device memory of an engine is taken."""

    name: str
    stable: bool


USUAL = Memory("usual", False)
STABLE = Memory("stable", True)
MEMORIES = (USUAL, STABLE)


@contextmanager
def sleeper(
    subject: Subject, plans: Sequence[Plan], memory: Memory = USUAL, num_blocks: int = NUM_BLOCKS
) -> Iterator[CacheEngine[Any]]:
    """An engine to sleep; skipped where its bytes have no addresses, or cannot keep those that they have."""
    subject.need("byte_addressable")
    if memory.stable:
        subject.need(_KEY)
    host = min(_NUM_HOST_BLOCKS, num_blocks)
    try:
        engine = subject.open_groups(plans, num_blocks, host, stable_addresses=memory.stable)
    except EngineStateError as error:
        if not memory.stable:
            raise
        raise Fault(
            f"an engine with {_KEY}=True",
            expected=f"memory, as {_KEY} is declared",
            found=str(error),
            cause="the capability is declared, and allocate_stable() is not there",
        ) from error
    with engine:
        yield engine


def _tiers_of(engine: CacheEngine[Any]) -> Iterator[tuple[Plan, CacheAllocation[Any], CacheAllocation[Any]]]:
    """Every group's plan, device memory and host tier."""
    for plan in engine.plans.blocks:
        yield plan, engine.allocation(group=plan.name), engine.allocation(group=plan.name, host=True)
    for state in engine.plans.states:
        states = engine.states
        yield state, states.allocation(group=state.name), states.allocation(group=state.name, host=True)


def views_of(engine: CacheEngine[Any], plan: BlockCachePlan) -> dict[tuple[int, int], Any]:
    """What the engine hands out, by ``(spec, row)``, of every row that has bytes."""
    named = engine.block_caches
    return {
        (index, row): named.layer(spec.name, row_id)
        for index, spec in enumerate(plan.specs)
        for row, row_id in enumerate(spec.row_ids if spec.page_nbytes else ())
    }


def over_a_sleep(
    subject: Subject, engine: CacheEngine[Any], level: int, live: Mapping[str, Sequence[int]] | None = None
) -> None:
    """Fill both tiers of every group, sleep, wake, and compare all of it with what must be there."""
    backend = subject.backend
    filled = {
        plan.name: (fill(backend, device, 31), fill(backend, host, 32)) for plan, device, host in _tiers_of(engine)
    }
    engine.sleep(level, live)
    engine.wake()
    for plan, device, host in _tiers_of(engine):
        on_device, on_host = filled[plan.name]
        kept = [] if level == 2 else list(range(NUM_BLOCKS)) if live is None else live.get(plan.name, range(NUM_BLOCKS))
        _check_woken(
            f"{plan.unit}s of group {plan.name!r} after a sleep at level {level}",
            plan,
            device,
            kept,
            on_device,
            dump(backend, device),
        )
        cause = "the host tier, which stays, was freed or moved with the device's memory"
        check_same(
            f"host tier of group {plan.name!r} after wake()", places_of(plan, host), on_host, dump(backend, host), cause
        )


def _check_woken(
    what: str, plan: Plan, allocation: CacheAllocation[Any], kept: Sequence[int], before: Contents, found: Contents
) -> None:
    """What was kept is as before, and all other bytes are zero; the padding of kept blocks is free."""
    places = places_of(plan, allocation)
    zeros = [bytes(len(pool)) for pool in found]
    expected = after_copy(places, places, before, zeros, [(block, block) for block in kept])
    for block in kept:
        for pool, start, nbytes in places.padding(block):
            expected[pool][start : start + nbytes] = found[pool][start : start + nbytes]
    for pool, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        byte = first_difference(wanted, got)
        if byte is None:
            continue
        owner = places.owner(pool, byte)
        if owner is None or owner[2] not in kept:
            raise Fault(
                what,
                expected="0x00: restore() gives zeroed memory",
                found=f"{got[byte]:#04x}",
                at=places.describe(pool, byte),
                cause="memory mapped or taken again without clearing it, or a pool that is left out of it",
            )
        spec, row, block, page = owner
        raise Fault(
            f"{what}, of which {plan.unit} {block} was kept",
            expected=f"{wanted[byte]:#04x}, as before",
            found=f"{got[byte]:#04x}",
            at=places.describe(pool, byte),
            cause=_why_lost(places, found, places.payload(spec, row, block, page)),
        )


def _why_lost(places: Places, found: Contents, lost: Payload) -> str:
    got = bytes(found[lost.pool][lost.start : lost.start + lost.nbytes])
    if not any(found[lost.pool]):
        return f"pool {lost.pool} came back as zeros: it was restored after its contents, or apart from its views"
    if not any(got):
        return "these bytes came back as zeros: a copy that still writes to the memory of before, or skips a row"
    return "another row's bytes stand there: pools that share memory after restore()"
