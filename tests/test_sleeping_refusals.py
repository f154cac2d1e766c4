from __future__ import annotations

import pytest
from sleepers import filled, rows

from cachecore import (
    AllocationError,
    BlockIndexError,
    ByteBackend,
    CacheLookupError,
    PlanError,
)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"level": 0}, PlanError, r"sleep level is 0; expected 1 \(contents kept.*\) or 2"),
        ({"level": 3}, PlanError, "sleep level is 3"),
        ({"level": True}, TypeError, "level must be an integer, not True"),
        ({"level": None}, TypeError, "level must be an integer, not None"),
        ({"level": 2, "live": [0]}, PlanError, "level 2 drops all contents, so live= has no meaning"),
        ({"live": [0]}, PlanError, "live lists blocks, but this engine has groups full, sliding, state"),
        ({"live": {"draft": [0]}}, CacheLookupError, "live names group 'draft', which does not exist"),
        ({"live": {"full": [4]}}, BlockIndexError, "live block 4 is out of range; group 'full' has 4"),
        ({"live": {"state": [-1]}}, BlockIndexError, "live slot -1 is out of range; group 'state' has 3"),
        ({"live": {"full": [0.5]}}, TypeError, "a live block must be an integer"),
        ({"live": {"full": 3}}, TypeError, "live blocks must be a sequence, not 3"),
    ],
)
def test_a_refused_sleep_changes_nothing(given, error, message):
    backend = ByteBackend()
    engine = filled(backend)
    before, taken = rows(engine), backend.taken_nbytes

    with pytest.raises(error, match=message):
        engine.sleep(**given)

    assert (rows(engine), backend.taken_nbytes, engine.generation, engine.sleep_level) == (before, taken, 1, 0)


@pytest.mark.parametrize("room", [0, 2048, 3071, 3839])
def test_without_room_for_the_contents_it_stays_awake_and_unharmed(room):
    # level 1 keeps 2,048 + 1,024 + 768 bytes beside 6,912 + 2,560
    backend = ByteBackend(capacity_nbytes=9472 + room)
    engine = filled(backend)
    before = rows(engine)

    with pytest.raises(AllocationError, match=r"keeps contents in 3840 bytes of host memory.*stays awake") as caught:
        engine.sleep()

    assert caught.value.needed_nbytes == 3840
    assert (rows(engine), backend.taken_nbytes, engine.generation, engine.sleep_level) == (before, 9472, 1, 0)
    engine.sleep(2)
    assert backend.taken_nbytes == 2560
