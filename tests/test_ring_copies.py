"""Copies of single ring rows: the right row of the right slot, worked out by hand, there and back."""

from __future__ import annotations

import pytest
from state_layouts import POLICIES, open_states

from cachecore import CacheLayout, PoolSpec, StateCacheRequest
from cachecore.ring_copies import RingCopies

NUM_SLOTS = 3
ROWS, NBYTES = 4, 6


def opened(policy, shift, num_scratch=5):
    """A ring of 4 rows of 6 bytes in two layers, beside another state; scratch memory of one pool."""
    requests = (
        StateCacheRequest(name="window", shape=(ROWS, NBYTES), dtype="uint8", axes=("token", "other"), layers=(0, 1)),
        StateCacheRequest(name="other", shape=(5,), dtype="uint8", layers=(0,)),
    )
    engine = open_states(policy, NUM_SLOTS, requests=requests)
    group = engine.group(None)
    index = next(at for at, spec in enumerate(group.plan.specs) if spec.name == "window")
    num_layers = group.plan.specs[index].num_rows
    layout = CacheLayout("scratch", (PoolSpec(outer=num_layers, inner=NBYTES),), ())
    scratch = engine.backend.allocate(layout, num_scratch, group.device.device)
    return engine, index, scratch, RingCopies(group, index, shift, scratch, 0)


def ring_rows(engine, index):
    """Every ring row as (layer, slot, row) -> view of its bytes."""
    spec = engine.plans.states[0].specs[index]
    backend, device = engine.backend, engine.allocation()
    rows = {}
    for layer in range(spec.num_rows):
        at = device.layout.row_strides(index, layer, device.num_entries)
        for slot in range(NUM_SLOTS):
            for row in range(ROWS):
                rows[layer, slot, row] = (at.pool, at.start + slot * at.entry + row * NBYTES)
    return backend, device, rows


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("shift", "position", "row"), [(0, 6, 2), (1, 6, 3), (-3, 6, 3), (2, 6, 0)])
def test_a_row_is_kept_and_put_back(policy, shift, position, row):
    # token 6 stands in row (6 + shift) mod 4 of its slot
    engine, index, scratch, copies = opened(policy, shift)
    backend, device, rows = ring_rows(engine, index)
    for number, (pool, start) in enumerate(rows.values()):
        backend.write(device, pool, start, bytes([number + 1] * NBYTES))
    before = {key: backend.read(device, *at, NBYTES) for key, at in rows.items()}

    copies.move([(1, position, 4)], restore=False)
    for pool, start in rows.values():
        backend.write(device, pool, start, bytes([0xEE] * NBYTES))
    copies.move([(1, position, 4)], restore=True)

    for layer, slot, number in rows:
        found = backend.read(device, *rows[layer, slot, number], NBYTES)
        assert found == (before[layer, slot, number] if (slot, number) == (1, row) else bytes([0xEE] * NBYTES))
    kept = [backend.read(scratch, 0, (layer * 5 + 4) * NBYTES, NBYTES) for layer in range(2)]
    assert kept == [before[layer, 1, row] for layer in range(2)]
