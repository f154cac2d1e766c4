"""An engine of several groups to put to sleep, and what every row of it holds."""

from __future__ import annotations

from row_oracle import RowOracle
from samples import COUNTS, HOST_COUNTS, open_bytes, three_groups
from stable_bytes import StableBytes

from cachecore import ByteBackend


def filled(backend=None, **more):
    """Full, sliding and state groups with random bytes on both tiers."""
    engine = open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend or ByteBackend(), **more)
    for owner, group in owners(engine):
        RowOracle(group.plan, owner.allocation(group=group.plan.name)).fill(3)
        RowOracle(group.plan, owner.allocation(group=group.plan.name, host=True), host=True).fill(4)
    return engine


def owners(engine):
    return [
        *((engine, engine.group(name)) for name in ("full", "sliding")),
        (engine.states, engine.states.group("state")),
    ]


def rows(engine, *, host=False):
    """What every row of every group holds."""
    return {
        group.plan.name: RowOracle(group.plan, group.host if host else group.device, host=host).read()
        for _, group in owners(engine)
    }


BACKENDS = [ByteBackend, StableBytes]
