"""Stable addresses: where declared, all that was made over the memory outlasts a sleep; elsewhere they are refused."""

from __future__ import annotations

from typing import Any

from cachecore.errors import EngineStateError
from cachecore.plan import BlockCachePlan
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_copy, dump, fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import places_of
from cachecore.testing.levels.memory import check_exact
from cachecore.testing.levels.sleep import LIVE, moves_after
from cachecore.testing.levels.sleep_bench import NUM_BLOCKS, STABLE, over_a_sleep, sleeper, views_of
from cachecore.testing.levels.views import write_rows
from cachecore.testing.samples import BLOCK_CASES, STATE_CASES, BlockCase, block_case
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_KEY = "stable_addresses"
_MISSING = "the backend does not declare stable_addresses"
_NAMES = (
    "kv-2-pages",
    "int8-kv-2-pages",
    "kv-and-index",
    "sparse-mla-without-v-2-pages",
    "many-pools-2-pages",
    "aligned",
)
_CASES = tuple(map(block_case, _NAMES))
_MOVED = "restore() returned the same allocation, though its memory stands elsewhere"


@check("sleep", "stable-or-refused")
def stable_or_refused(subject: Subject) -> str | None:
    """stable_addresses=True is served where declared, and refused with the declared reason, or none, elsewhere."""
    plan, reason = subject.plan(BLOCK_CASES[0]), subject.backend.capabilities().get(_KEY, _MISSING)
    if reason is None:
        with sleeper(subject, [plan], STABLE) as engine:
            return "; ".join(f"{group.group}: {group.reserved_nbytes} bytes" for group in engine.stats().groups)
    expected = f"an EngineStateError that says {reason!r}"
    try:
        subject.open_groups([plan], NUM_BLOCKS, 0, stable_addresses=True).close()
    except EngineStateError as error:
        if reason not in str(error):
            raise Fault(f"refusal of {_KEY}=True", expected=expected, found=str(error)) from error
        return f"refused: {reason}"
    except Exception as error:
        cause = "booleans instead of reasons" if isinstance(reason, bool) else ""
        raise Fault(f"refusal of {_KEY}=True", expected=expected, found=repr(error), cause=cause) from error
    raise Fault(f"an engine with {_KEY}=True", expected=expected, found="an engine")


@check("sleep", "stable-addresses", _CASES)
def addresses(subject: Subject, case: BlockCase) -> str | None:
    """The same allocation with the same regions comes back, exact, and what it takes beyond the plan is counted."""
    plan = subject.plan(case)
    with sleeper(subject, [plan], STABLE) as engine:
        before, generation = engine.allocation(), engine.generation
        regions = subject.backend.regions(before)
        _check_figures(subject, engine, plan)
        engine.sleep(2)
        engine.wake()
        if engine.allocation() is not before:
            raise Fault(
                "restore() of allocate_stable()'s memory",
                expected="the same allocation: every address is as before",
                found="another",
                cause="restore() is not overridden and allocates anew: graphs and views read memory that is gone",
            )
        found = subject.backend.regions(before)
        if found != regions:
            raise Fault(f"regions() after wake(), with {_KEY}", expected=regions, found=found, cause=_MOVED)
        if engine.generation != generation:
            raise Fault(
                "generation after wake()", expected=f"{generation}, as views are valid", found=engine.generation
            )
        _check_figures(subject, engine, plan)
    return None


def _check_figures(subject: Subject, engine: Any, plan: BlockCachePlan) -> None:
    allocation, told = engine.allocation(), engine.stats().groups[0]
    check_exact(subject, plan, allocation, NUM_BLOCKS)
    excess = allocation.excess_nbytes
    if not isinstance(excess, int) or excess < 0:
        raise Fault("excess_nbytes", expected="the bytes taken beyond the buffers, 0 or more", found=repr(excess))
    if told.reserved_nbytes != plan.reserved_nbytes(NUM_BLOCKS) + excess or not told.stable_addresses:
        raise Fault(
            "stats() with stable addresses",
            expected=f"{plan.reserved_nbytes(NUM_BLOCKS)} + {excess} bytes reserved",
            found=f"{told.reserved_nbytes}",
        )


@check("sleep", "stable-contents", _CASES)
def contents(subject: Subject, case: BlockCase) -> str | None:
    """Level 1 keeps live blocks and slots and level 2 nothing, where the same addresses come back."""
    plan, states = subject.plan(case), subject.state_plan(STATE_CASES[0])
    with sleeper(subject, [plan, states], STABLE) as engine:
        over_a_sleep(subject, engine, 1, {plan.name: LIVE})
        over_a_sleep(subject, engine, 2)
    return None


@check("sleep", "stable-views", _CASES)
def views(subject: Subject, case: BlockCase) -> str | None:
    """Views handed out before a sleep show what was kept, and reach the memory of afterwards."""
    plan, adapter = subject.plan(case), subject.adapter()
    with sleeper(subject, [plan], STABLE) as engine:
        handed_out = views_of(engine, plan)
        fill(subject.backend, engine.allocation(), 34)
        wanted = {key: adapter.get(view, 0) for key, view in handed_out.items()}
        engine.sleep(1, LIVE)
        engine.wake()
        for (index, row), view in handed_out.items():
            if adapter.get(view, 0) != wanted[index, row]:
                raise Fault(
                    f"block 0 of cache {plan.specs[index].name!r} row {row}, kept and read through a view of before",
                    expected=f"{wanted[index, row][:8].hex()}...",
                    found=f"{adapter.get(view, 0)[:8].hex()}...",
                    cause=_MOVED,
                )
        write_rows(subject, plan, engine.allocation(), " of before the sleep", views=handed_out, cause=_MOVED)
    return None


@check("sleep", "stable-moves", _CASES)
def moves(subject: Subject, case: BlockCase) -> str | None:
    """Copies and swaps made before a sleep are bit-exact afterwards."""
    plan = subject.plan(case)
    with sleeper(subject, [plan], STABLE) as engine:
        moves_after(subject, engine, plan)
    return None


@check("sleep", "stable-graph")
def graph(subject: Subject) -> str | None:
    """A copy captured in a graph before a sleep is right when it is replayed afterwards, each time."""
    adapter, plan = subject.adapter(), subject.plan(BLOCK_CASES[1])
    with sleeper(subject, [plan], STABLE) as engine:
        subject.need("device_ids")
        subject.need("graph_capture")
        allocation = engine.allocation()
        places, ids = places_of(plan, allocation), adapter.device_ids([(-1, -1)] * 3, subject.device)
        replay = adapter.capture(subject.device, lambda: engine.copy_blocks_on_device(ids))
        for level, pairs in ((1, [(0, 5), (1, 6), (-1, -1)]), (2, [(-1, -1), (8, 2), (4, 3)])):
            engine.sleep(level)
            engine.wake()
            before = fill(subject.backend, engine.allocation(), 35)
            adapter.set_ids(ids, pairs)
            replay()
            real = [pair for pair in pairs if min(pair) >= 0]
            what = f"copy captured before a sleep at level {level}, replayed after it"
            check_copy(what, places, places, before, before, dump(subject.backend, engine.allocation()), real)
    return None


CHECKS: tuple[Check, ...] = (stable_or_refused, addresses, contents, views, moves, graph)
