"""Lifetime: close gives everything back, once; nothing works afterwards; cycles leak nothing."""

from __future__ import annotations

from cachecore.errors import EngineStateError
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.accounting import free_nbytes
from cachecore.testing.levels.memory import allocated
from cachecore.testing.samples import BLOCK_CASES, STATE_CASES
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_CYCLES = 50
_CYCLE_NBYTES = 8 << 20


@check("lifetime", "free-twice")
def free_twice(subject: Subject) -> str | None:
    """Freeing twice is freeing once: the second call raises nothing and gives back nothing."""
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    allocation = subject.allocate(plan, 64)
    before = backend.memory(subject.device)
    backend.free(allocation)
    if not allocation.freed:
        raise Fault("allocation.freed after free()", expected=True, found=False)
    try:
        backend.free(allocation)
    except Exception as error:
        raise Fault(
            "free() of a freed allocation", expected="nothing", found=repr(error), cause="buffers taken for there"
        ) from error
    after = backend.memory(subject.device)
    if subject.device.type != "cpu" and after.free_nbytes > before.free_nbytes + plan.reserved_nbytes(64) + (64 << 20):
        raise Fault(
            "free bytes after freeing twice",
            expected=f"at most {plan.reserved_nbytes(64)} more",
            found=f"{after.free_nbytes - before.free_nbytes} more",
            cause="the bytes were given back twice",
        )
    if after.free_nbytes > after.total_nbytes:
        raise Fault("free bytes after freeing twice", expected=f"at most {after.total_nbytes}", found=after.free_nbytes)
    return None


@check("lifetime", "freed-memory-is-refused")
def freed_is_refused(subject: Subject) -> str | None:
    """A freed allocation gives no views and no bytes."""
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    allocation = subject.allocate(plan, 4)
    backend.free(allocation)
    spec = plan.specs[0]
    for name, use in (
        ("row_view", lambda: backend.row_view(allocation, 0, spec, 0)),
        ("read", lambda: backend.read(allocation, 0, 0, 16)),
        ("write", lambda: backend.write(allocation, 0, 0, bytes(16))),
    ):
        try:
            got = use()
        except Exception:  # noqa: BLE001  # any refusal will do
            continue
        raise Fault(
            f"{name}() of a freed allocation",
            expected="an error",
            found=repr(got)[:60],
            cause="pools kept after free()",
        )
    return None


@check("lifetime", "close")
def close(subject: Subject) -> str | None:
    """A closed engine gives no rows and moves nothing, and closing it again does nothing."""
    plan = subject.plan(BLOCK_CASES[0])
    engine = subject.open(plan, 6, 4)
    generation, named = engine.generation, engine.block_caches
    allocations = engine.allocation(), engine.allocation(host=True)
    engine.swap_out([(0, 0)])
    engine.close()
    engine.close()
    if not all(allocation.freed for allocation in allocations):
        raise Fault("allocations of a closed engine", expected="both tiers freed", found="one is not")
    if engine.generation == generation:
        raise Fault("generation after close()", expected="another: views are invalid", found=generation)
    for what, use in (
        ("layer()", lambda: named.layer(plan.specs[0].name, 0)),
        ("copy_blocks()", lambda: engine.copy_blocks([(0, 1)])),
        ("swap_out()", lambda: engine.swap_out([(0, 1)])),
        ("stats()", engine.stats),
    ):
        try:
            use()
        except EngineStateError:
            continue
        raise Fault(f"{what} after close()", expected="an EngineStateError", found="an answer")
    return None


@check("lifetime", "fifty-cycles")
def fifty_cycles(subject: Subject) -> str | None:
    """Fifty engines opened, used and closed leave as much memory as before."""
    plan = subject.plan(BLOCK_CASES[1])
    blocks = max(8, _CYCLE_NBYTES // plan.block_nbytes())
    subject.open(plan, blocks, 8).close()
    before = free_nbytes(subject)
    for _ in range(_CYCLES):
        with subject.open(plan, blocks, 8) as engine:
            engine.copy_blocks([(0, 1)])
            engine.swap_out([(1, 0)])
    lost = before - free_nbytes(subject)
    if lost > _CYCLES * _CYCLE_NBYTES // 4:
        raise Fault(
            f"bytes lost in {_CYCLES} cycles of {plan.reserved_nbytes(blocks)} bytes",
            expected="none",
            found=lost,
            cause="free() keeps a buffer, or a copy, graph or event keeps views of it alive",
        )
    return f"{max(0, lost)} bytes"


@check("lifetime", "states")
def states(subject: Subject) -> str | None:
    """Closing an engine closes its states."""
    plan = subject.state_plan(STATE_CASES[0])
    engine = subject.open(plan, 4, 2)
    allocation = engine.states.allocation()
    engine.close()
    if not allocation.freed:
        raise Fault("slots of a closed engine", expected="freed", found="not freed")
    return None


@check("lifetime", "neighbours-survive")
def neighbours_survive(subject: Subject) -> str | None:
    """Freeing one allocation leaves another's bytes alone."""
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    with allocated(subject, plan, 16) as kept:
        written = fill(backend, kept, 23)
        backend.free(subject.allocate(plan, 16))
        again = subject.allocate(plan, 16)
        fill(backend, again, 24)
        found = [backend.read(kept, pool, 0, len(data)) for pool, data in enumerate(written)]
        backend.free(again)
        if found != written:
            raise Fault(
                "bytes of an allocation after another was freed",
                expected="as written",
                found="others",
                cause="a pool freed that is still used",
            )
    return None


CHECKS: tuple[Check, ...] = (
    free_twice,
    freed_is_refused,
    close,
    fifty_cycles,
    states,
    neighbours_survive,
)
