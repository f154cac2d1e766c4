"""Capabilities: what is declared unsupported refuses with its reason, what is declared works."""

from __future__ import annotations

from cachecore.errors import EngineStateError
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_copy, check_same, dump, fill
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.levels.copy import places_of
from cachecore.testing.samples import BLOCK_CASES
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

KEYS = ("pinned_host", "device_ids", "graph_capture", "async_copy", "byte_addressable")


@check("capabilities", "declared")
def declared(subject: Subject) -> str | None:
    """Every capability is declared: None for able, else the reason why not."""
    told = subject.backend.capabilities()
    for key in KEYS:
        if key not in told:
            raise Fault(f"capability {key!r}", expected="None, or the reason why not", found="not declared")
    for key, reason in told.items():
        if reason is not None and (not isinstance(reason, str) or not reason):
            raise Fault(
                f"capability {key!r}",
                expected="None, or the reason why not",
                found=repr(reason),
                cause="booleans instead of reasons",
            )
    return "; ".join(f"{key}: {reason or 'yes'}" for key, reason in told.items())


@check("capabilities", "device-ids")
def device_ids(subject: Subject) -> str | None:
    """Device-resident ids work, or the copy refuses them and moves nothing."""
    plan, adapter, backend = subject.plan(BLOCK_CASES[0]), subject.adapter(), subject.backend
    subject.need("byte_addressable")
    able = subject.reason_against("device_ids") is None
    with subject.open(plan, 6) as engine:
        allocation = engine.allocation()
        places = places_of(plan, allocation)
        before = fill(backend, allocation, 27)
        try:
            engine.copy_blocks_on_device(adapter.device_ids([(0, 5)], subject.device))
        except EngineStateError as error:
            if able:
                raise Fault(
                    "copy_blocks_on_device()",
                    expected="a copy, as device_ids is declared",
                    found=str(error),
                    cause="the copy that was chosen has no on_device(), or the capability is another record's",
                ) from error
            check_same("memory after device-resident ids were refused", places, before, dump(backend, allocation))
            return "refuses"
        except Exception as error:
            expected = "a copy" if able else "an EngineStateError"
            raise Fault("copy_blocks_on_device()", expected=expected, found=repr(error)) from error
        if not able:
            raise Fault(
                "copy_blocks_on_device(), with device_ids declared unsupported",
                expected="an EngineStateError",
                found="no error",
                cause="a capability that works and is not declared: nobody will use it",
            )
        check_copy("copy with device-resident ids", places, places, before, before, dump(backend, allocation), [(0, 5)])
    return "works"


@check("capabilities", "synchronous-means-done")
def synchronous_means_done(subject: Subject) -> str | None:
    """Without async_copy, a swap is done when the call returns."""
    if (reason := subject.reason_against("async_copy")) is None:
        raise Skipped("async_copy is declared; the order level checks it")
    subject.need("byte_addressable")
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    with subject.open(plan, 6, 4) as engine:
        host = engine.allocation(host=True)
        on_device, on_host = fill(backend, engine.allocation(), 28), fill(backend, host, 29)
        work = engine.swap_out([(1, 2)])
        if not work.done() or engine.host_blocks_in_flight():
            raise Fault(
                "swap_out() of a backend without async_copy",
                expected="done when it returns",
                found="in flight",
                cause="async_copy works and is not declared",
            )
        here, there = places_of(plan, engine.allocation()), places_of(plan, host)
        check_copy("swap_out", here, there, on_device, on_host, dump(backend, host), [(1, 2)])
    return reason


@check("capabilities", "slower-ways-are-counted")
def slower_ways_are_counted(subject: Subject) -> str | None:
    """Which way the bytes go is told; bytes through the host, where no copy serves, are counted with the reason."""
    with subject.open(subject.plan(BLOCK_CASES[0]), 6, 4) as engine:
        engine.copy_blocks([(0, 1)]).synchronize()
        engine.swap_out([(0, 1)]).synchronize()
        engine.swap_in([(1, 2)]).synchronize()
        stats = engine.stats()
    for copy in stats.groups[0].copies:
        if not copy.path or copy.path == "unnamed":
            raise Fault(f"path of {copy.direction}", expected="a name for the way the bytes go", found=repr(copy.path))
        if copy.num_calls != 1 or copy.num_blocks != 1:
            raise Fault(
                f"calls of {copy.direction}", expected="1 call, 1 block", found=f"{copy.num_calls}, {copy.num_blocks}"
            )
    slow = [copy.direction for copy in stats.groups[0].copies if copy.fallback]
    if stats.num_fallback_calls != len(slow) or len(stats.fallback_reasons) != len(slow):
        raise Fault("fallback calls counted", expected=len(slow), found=stats.num_fallback_calls)
    told = ", ".join(f"{copy.direction}: {copy.record} ({copy.path})" for copy in stats.groups[0].copies)
    return told + (f"; no copy record serves {', '.join(slow)}, so bytes go through the host" if slow else "")


@check("capabilities", "byte-addressable")
def byte_addressable(subject: Subject) -> str | None:
    """Bytes can be read and written as declared; memory that has no byte addresses offers no regions."""
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    reason = subject.reason_against("byte_addressable")
    allocation = subject.allocate(plan, 4)
    try:
        if reason is not None:
            if backend.regions(allocation):
                raise Fault(
                    "regions() of memory that is not byte-addressable",
                    expected="none: a transfer would move bytes that mean nothing elsewhere",
                    found=len(backend.regions(allocation)),
                )
            return reason
        backend.write(allocation, 0, 3, b"\x01\x02\x03\x04\x05")
        found = backend.read(allocation, 0, 2, 7)
        if found != b"\x00\x01\x02\x03\x04\x05\x00":
            raise Fault("seven bytes of a pool, from byte 2 on", expected="00010203040500", found=found.hex())
    finally:
        backend.free(allocation)
    return None


CHECKS: tuple[Check, ...] = (declared, device_ids, synchronous_means_done, slower_ways_are_counted, byte_addressable)
