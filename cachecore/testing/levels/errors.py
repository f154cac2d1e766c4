"""Errors: every wrong id, list and range is refused on the host, and a refused call changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cachecore.errors import CacheCoreError, PlanError
from cachecore.layout import CacheLayout
from cachecore.plan import BlockCachePlan
from cachecore.plan_set import CachePlanSet
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_same, dump, fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import places_of
from cachecore.testing.levels.memory import allocated
from cachecore.testing.samples import BLOCK_CASES
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_NUM_BLOCKS, _NUM_HOST_BLOCKS = 6, 4


@dataclass(frozen=True, slots=True)
class Wrong:
    """A call that must be refused, and with what."""

    name: str
    call: Callable[[Any], object]
    error: type[BaseException]


WRONG = (
    Wrong("copy-source-negative", lambda engine: engine.copy_blocks([(0, 1), (-1, 2)]), IndexError),
    Wrong("copy-source-one-past", lambda engine: engine.copy_blocks([(0, 1), (6, 2)]), IndexError),
    Wrong("copy-destination-one-past", lambda engine: engine.copy_blocks([(0, 1), (2, 6)]), IndexError),
    Wrong("copy-destination-huge", lambda engine: engine.copy_blocks([(0, 1), (2, 1 << 40)]), IndexError),
    Wrong("copy-beyond-64-bits", lambda engine: engine.copy_blocks([(0, 1), (2, 1 << 64)]), IndexError),
    Wrong("copy-destination-doubled", lambda engine: engine.copy_blocks([(0, 5), (1, 5)]), ValueError),
    Wrong("copy-onto-itself", lambda engine: engine.copy_blocks([(3, 3)]), ValueError),
    Wrong("copy-chain", lambda engine: engine.copy_blocks([(0, 1), (1, 2)]), ValueError),
    Wrong("copy-floats", lambda engine: engine.copy_blocks([(0.0, 1.0)]), TypeError),
    Wrong("copy-booleans", lambda engine: engine.copy_blocks([(True, 4)]), TypeError),
    Wrong("copy-text", lambda engine: engine.copy_blocks("01"), TypeError),
    Wrong("swap-out-device-one-past", lambda engine: engine.swap_out([(0, 0), (6, 1)]), IndexError),
    Wrong("swap-out-host-one-past", lambda engine: engine.swap_out([(0, 0), (5, 4)]), IndexError),
    Wrong("swap-out-host-doubled", lambda engine: engine.swap_out([(0, 2), (1, 2)]), ValueError),
    Wrong("swap-in-host-one-past", lambda engine: engine.swap_in([(0, 0), (4, 1)]), IndexError),
    Wrong("swap-in-device-one-past", lambda engine: engine.swap_in([(0, 0), (3, 6)]), IndexError),
    Wrong("zero-one-past", lambda engine: engine.zero_blocks([0, 6]), IndexError),
    Wrong("zero-negative", lambda engine: engine.zero_blocks([0, -1]), IndexError),
    Wrong("zero-floats", lambda engine: engine.zero_blocks([0.0]), TypeError),
    Wrong("no-such-group", lambda engine: engine.copy_blocks([(0, 1)], group="none"), LookupError),
)
"""Each has something right before what is wrong: a refusal comes before the first byte moves."""


@check("errors", "refused", WRONG)
def refused(subject: Subject, case: Wrong) -> str | None:
    """The call raises the builtin that a caller would catch, and both tiers stay as they were."""
    subject.need("byte_addressable")
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    with subject.open(plan, _NUM_BLOCKS, _NUM_HOST_BLOCKS) as engine:
        tiers = engine.allocation(), engine.allocation(host=True)
        before = [fill(backend, tier, 25) for tier in tiers]
        try:
            case.call(engine)
        except case.error:
            pass
        except Exception as error:
            raise Fault(case.name, expected=f"a {case.error.__name__}", found=repr(error)) from error
        else:
            raise Fault(
                case.name,
                expected=f"a {case.error.__name__}, before anything is queued",
                found="no error",
                cause="ids not checked, or a limit off by one",
            )
        for tier, contents in zip(tiers, before, strict=True):
            check_same(f"memory after {case.name} was refused", places_of(plan, tier), contents, dump(backend, tier))
    return None


@check("errors", "outside-a-pool")
def outside_a_pool(subject: Subject) -> str | None:
    """read() and write() past a pool's end never reach other bytes."""
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    with allocated(subject, plan, 4) as allocation:
        end = plan.layout.pool_nbytes(0, allocation.num_entries)
        before = fill(backend, allocation, 26)
        for offset, nbytes in ((end - 4, 8), (end, 1), (end + 4096, 16)):
            try:
                got = backend.read(allocation, 0, offset, nbytes)
            except (CacheCoreError, IndexError, ValueError):
                got = b""
            if len(got) == nbytes:
                raise Fault(
                    f"read() of {nbytes} bytes from byte {offset} of a pool of {end}",
                    expected="an IndexError",
                    found=f"{nbytes} bytes of something else",
                    cause="offsets added to an address without a bound",
                )
            try:
                backend.write(allocation, 0, offset, bytes(nbytes))
            except (CacheCoreError, IndexError, ValueError):
                continue
            raise Fault(
                f"write() of {nbytes} bytes to byte {offset} of a pool of {end}",
                expected="an IndexError",
                found="no error",
            )
        check_same("the pool after refused writes", places_of(plan, allocation), before, dump(backend, allocation))
    return None


@check("errors", "no-host-tier")
def no_host_tier(subject: Subject) -> str | None:
    """Without a host tier, a swap says so."""
    with subject.open(subject.plan(BLOCK_CASES[0]), 4) as engine:
        try:
            engine.swap_out([(0, 0)])
        except CacheCoreError:
            return None
    raise Fault("swap_out() without a host tier", expected="an error that says so", found="no error")


@check("errors", "another-policys-plan")
def another_policys_plan(subject: Subject) -> str | None:
    """A plan of another policy, or of another version of this one, is refused or declared to be served."""
    plan, backend = subject.plan(BLOCK_CASES[0]), subject.backend
    for name, version in (("no-such-policy", "1"), (plan.policy, "no-such-version")):
        other = _signed(plan, plan.layout, name, version)
        reason = backend.serves_layout(other.layout, name, version)
        if reason is None:
            continue
        if not isinstance(reason, str) or not reason:
            raise Fault("serves_layout()", expected="None or the reason why not", found=repr(reason))
        try:
            subject.open(other, 4).close()
        except PlanError:
            continue
        raise Fault(f"a plan of policy {name!r} {version!r}", expected="a PlanError", found="an engine")
    return None


def _signed(plan: BlockCachePlan, layout: CacheLayout, policy: str, version: str) -> BlockCachePlan:
    other = BlockCachePlan(plan.group, plan.specs, layout, plan.host_layout, policy, version)
    return CachePlanSet.loads(CachePlanSet((other,), "cpu", "kit").dumps()).blocks[0]


CHECKS: tuple[Check, ...] = (refused, outside_a_pool, no_host_tier, another_policys_plan)
