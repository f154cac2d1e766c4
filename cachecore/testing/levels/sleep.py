"""Sleep: level 1 keeps live blocks bit-exact, level 2 nothing; views and copies are right afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cachecore.errors import EngineStateError
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_same, dump, fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import copy_batches, places_of
from cachecore.testing.levels.memory import check_exact
from cachecore.testing.levels.sleep_bench import NUM_BLOCKS, over_a_sleep, sleeper, views_of
from cachecore.testing.levels.swap import swap_both_ways
from cachecore.testing.levels.views import write_rows
from cachecore.testing.samples import BLOCK_CASES, STATE_CASES, BlockCase, StateCase, block_case
from cachecore.testing.subject import Subject

__all__ = ["CHECKS", "LIVE", "moves_after"]

LIVE = (6, 0, 3, 8)
"""The first and the last block, holes, and not in order."""

_COPIES = ([(0, 8)], [(3, 0), (3, 1), (4, 7), (5, 6)])
_OUT = [(8, 0), (0, 6), (4, 2), (5, 3), (7, 1)]
_IN = [(6, 3), (0, 1), (2, 8), (3, 7)]


@check("sleep", "level-1-keeps", BLOCK_CASES)
def level_1_keeps(subject: Subject, case: BlockCase) -> str | None:
    """Live blocks are as before, scales and auxiliary rows too; others are zero; the host tier stays."""
    plan = subject.plan(case)
    with sleeper(subject, [plan]) as engine:
        over_a_sleep(subject, engine, 1, {plan.name: LIVE})
        over_a_sleep(subject, engine, 1)
    return None


@check("sleep", "level-1-keeps-slots", STATE_CASES)
def level_1_keeps_slots(subject: Subject, case: StateCase) -> str | None:
    """Live slots are as before: every state, every layer."""
    plan = subject.state_plan(case)
    with sleeper(subject, [plan]) as engine:
        over_a_sleep(subject, engine, 1, {plan.name: LIVE})
    return None


@check("sleep", "groups-sleep-as-one")
def groups_sleep_as_one(subject: Subject) -> str | None:
    """Several groups and the states sleep and wake together; a group that is not named in live keeps all."""
    scaled = subject.plan(block_case("int8-kv-2-pages"))
    other, states = subject.plan(block_case("aligned"), group="other"), subject.state_plan(STATE_CASES[0])
    with sleeper(subject, [scaled, other, states]) as engine:
        over_a_sleep(subject, engine, 1, {scaled.name: LIVE, states.name: LIVE})
        over_a_sleep(subject, engine, 2)
        over_a_sleep(subject, engine, 1)
    return None


@check("sleep", "level-2-zeroes", BLOCK_CASES)
def level_2_zeroes(subject: Subject, case: BlockCase) -> str | None:
    """Level 2 keeps nothing: every byte is zero afterwards, also where the same memory comes back."""
    with sleeper(subject, [subject.plan(case)]) as engine:
        over_a_sleep(subject, engine, 2)
        over_a_sleep(subject, engine, 2)
    return None


@check("sleep", "views-after-wake", BLOCK_CASES)
def views_after_wake(subject: Subject, case: BlockCase) -> str | None:
    """Memory of afterwards is exact, and the views handed out then alias it."""
    plan = subject.plan(case)
    with sleeper(subject, [plan]) as engine:
        before = engine.allocation()
        addresses, generation = subject.backend.regions(before), engine.generation
        engine.sleep(2)
        engine.wake()
        found = engine.allocation()
        if engine.generation == generation:
            raise Fault("generation after a sleep", expected="another: views are invalid", found=generation)
        if found is before and subject.backend.regions(found) != addresses:
            raise Fault(
                "restore()",
                expected="another allocation, as the addresses are others",
                found="the same object",
                cause="pools put into the old object: whoever keeps addresses believes that they are right",
            )
        check_exact(subject, plan, found, NUM_BLOCKS)
        cause = "views of the memory of before the sleep, or rows of pools in another order"
        write_rows(subject, plan, found, " after wake()", views=views_of(engine, plan), cause=cause)
    return None


def moves_after(subject: Subject, engine: Any, plan: Any) -> None:
    """Copies and swaps are bit-exact after a sleep, by the same ways as before."""
    copy_batches(subject, engine, _COPIES)
    swap_both_ways(subject, engine, plan, _OUT, _IN)
    paths = [copy.path for copy in engine.stats().groups[0].copies]  # of the last call: before one it is a guess
    engine.sleep(1, LIVE)
    engine.wake()
    copy_batches(subject, engine, _COPIES, " after wake()")
    swap_both_ways(subject, engine, plan, _OUT, _IN, " after wake()")
    found = [copy.path for copy in engine.stats().groups[0].copies]
    if found != paths:
        raise Fault("ways of copies after wake()", expected=f"as before, {', '.join(paths)}", found=", ".join(found))


@check("sleep", "moves-after-wake", BLOCK_CASES)
def moves_after_wake(subject: Subject, case: BlockCase) -> str | None:
    """Block copies and swaps between the memory of afterwards and the host tier are bit-exact."""
    plan = subject.plan(case)
    with sleeper(subject, [plan]) as engine:
        moves_after(subject, engine, plan)
    return None


@check("sleep", "asleep-is-refused")
def asleep_is_refused(subject: Subject) -> str | None:
    """Asleep, all that needs memory raises; stats() answers, the host tier stays, and waking twice is waking once."""
    plan, states = subject.plan(BLOCK_CASES[0]), subject.state_plan(STATE_CASES[0])
    with sleeper(subject, [plan, states]) as engine:
        named, slots, host = engine.block_caches, engine.states, engine.allocation(host=True)
        written = fill(subject.backend, host, 33)
        engine.sleep(1, {plan.name: LIVE, states.name: LIVE})
        engine.sleep(1)
        told = engine.stats()
        if told.sleep_level != 1 or any(group.reserved_nbytes for group in told.groups):
            raise Fault(
                "stats() asleep",
                expected="level 1 and no device bytes",
                found=f"level {told.sleep_level} and {sum(group.reserved_nbytes for group in told.groups)} bytes",
            )
        uses: dict[str, Callable[[], object]] = {
            "layer()": lambda: named.layer(plan.specs[0].name, 0),
            "allocation()": engine.allocation,
            "copy_blocks()": lambda: engine.copy_blocks([(0, 1)]),
            "zero_blocks()": lambda: engine.zero_blocks([0]),
            "swap_out()": lambda: engine.swap_out([(0, 1)]),
            "swap_in()": lambda: engine.swap_in([(0, 1)]),
            "zero_slots()": lambda: slots.zero_slots([0]),
            "states.allocation()": slots.allocation,
        }
        for what, use in uses.items():
            try:
                use()
            except EngineStateError:
                continue
            raise Fault(f"{what} of an engine that sleeps", expected="an EngineStateError", found="an answer")
        cause = "release() gave back more than the allocation that it was given"
        check_same("host tier asleep", places_of(plan, host), written, dump(subject.backend, host), cause)
        engine.wake()
        engine.wake()
        named.layer(plan.specs[0].name, 0)
    return None


CHECKS: tuple[Check, ...] = (
    level_1_keeps,
    level_1_keeps_slots,
    groups_sleep_as_one,
    level_2_zeroes,
    views_after_wake,
    moves_after_wake,
    asleep_is_refused,
)
