"""States: slots zeroed, copied and swapped in batches, and rows that belong to layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cachecore.errors import CacheCoreError
from cachecore.state import StateCacheEngine
from cachecore.state_plan import StateCachePlan
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_copy, check_same, dump, fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import places_of
from cachecore.testing.samples import STATE_CASES, StateCase
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_NUM_SLOTS, _NUM_HOST_SLOTS = 7, 5


@contextmanager
def _states(subject: Subject, case: StateCase) -> Iterator[tuple[StateCachePlan, StateCacheEngine[Any]]]:
    subject.need("byte_addressable")
    plan = subject.state_plan(case)
    with subject.open(plan, _NUM_SLOTS, _NUM_HOST_SLOTS) as engine:
        yield plan, engine.states


@check("states", "zero", STATE_CASES)
def zero(subject: Subject, case: StateCase) -> str | None:
    """Slots of new sequences are zero, and no other slot is touched."""
    with _states(subject, case) as (plan, engine):
        allocation = engine.allocation()
        places, backend = places_of(plan, allocation), subject.backend
        for slots in ([3], [0, 6], [5, 1, 2], []):
            expected = [bytearray(data) for data in fill(backend, allocation, 18)]
            engine.zero_slots(slots).synchronize()
            found = dump(backend, allocation)
            for slot in slots:
                for spec, row, page in places.parts:
                    at = places.payload(spec, row, slot, page)
                    expected[at.pool][at.start : at.start + at.nbytes] = bytes(at.nbytes)
                for at in places.padding(slot):
                    expected[at.pool][at.start : at.start + at.nbytes] = found[at.pool][at.start : at.start + at.nbytes]
            cause = "a neighbouring slot cleared too, or only one row or one pool of the slot"
            check_same(f"zero_slots({slots})", places, expected, found, cause)
    return None


@check("states", "copy", STATE_CASES)
def copy(subject: Subject, case: StateCase) -> str | None:
    """A slot is copied whole: every state, every layer."""
    with _states(subject, case) as (plan, engine):
        allocation = engine.allocation()
        places = places_of(plan, allocation)
        before = fill(subject.backend, allocation, 19)
        pairs = [(0, 6), (0, 1), (5, 2)]
        engine.copy_slots(pairs).synchronize()
        check_copy("copy of slots", places, places, before, before, dump(subject.backend, allocation), pairs)
    return None


@check("states", "swap", STATE_CASES)
def swap(subject: Subject, case: StateCase) -> str | None:
    """A slot survives the way to the host and back into another slot."""
    with _states(subject, case) as (plan, engine):
        backend = subject.backend
        device, host = engine.allocation(), engine.allocation(host=True)
        here, there = places_of(plan, device), places_of(plan, host)
        on_device, on_host = fill(backend, device, 20), fill(backend, host, 21)
        out, back = [(6, 0), (1, 4)], [(0, 2), (4, 5)]
        engine.swap_out(out).synchronize()
        moved = dump(backend, host)
        check_copy("swap_out of slots", here, there, on_device, on_host, moved, out)
        engine.swap_in(back).synchronize()
        check_copy("swap_in of slots", there, here, moved, on_device, dump(backend, device), back)
    return None


@check("states", "rows-belong-to-layers", STATE_CASES)
def rows_belong_to_layers(subject: Subject, case: StateCase) -> str | None:
    """layer(name, id) is that layer's row, whole, and a layer without a state has none."""
    with _states(subject, case) as (plan, engine):
        adapter, allocation = subject.adapter(), engine.allocation()
        places = places_of(plan, allocation)
        contents = fill(subject.backend, allocation, 22)
        for index, spec in enumerate(plan.specs):
            for row, layer in enumerate(spec.row_ids):
                view = engine.state_caches.layer(spec.name, layer)
                if adapter.shape(view) != (_NUM_SLOTS, *spec.shape):
                    raise Fault(
                        f"shape of state {spec.name!r}, layer {layer}",
                        expected=(_NUM_SLOTS, *spec.shape),
                        found=adapter.shape(view),
                    )
                for slot in range(_NUM_SLOTS):
                    at = places.payload(index, row, slot, 0)
                    wanted = contents[at.pool][at.start : at.start + at.nbytes]
                    if adapter.get(view, slot) != wanted:
                        raise Fault(
                            f"slot {slot} of state {spec.name!r}, layer {layer}, through its view",
                            expected=wanted[:8].hex(),
                            found=adapter.get(view, slot)[:8].hex(),
                            at=places.describe(at.pool, at.start),
                            cause="rows taken for layers: a row is the layer's position among those with the state",
                        )
            try:
                engine.state_caches.layer(spec.name, 1000)
            except (CacheCoreError, KeyError, IndexError):
                continue
            raise Fault(f"state {spec.name!r} of layer 1000", expected="an error", found="a view")
    return None


CHECKS: tuple[Check, ...] = (zero, copy, swap, rows_belong_to_layers)
