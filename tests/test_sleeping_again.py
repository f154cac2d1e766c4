from __future__ import annotations

import pytest
from held_copies import HeldCopies
from row_oracle import RowOracle
from samples import kv_plan, open_bytes, two_groups
from sleepers import filled, rows
from stable_bytes import StableBytes

from cachecore import (
    ByteBackend,
    EngineStateError,
    PlanError,
)


def test_transfers_in_flight_finish_first():
    copies = HeldCopies()
    engine = open_bytes(kv_plan(), 4, 2, copies=[copies.info])
    host = RowOracle(kv_plan(), engine.allocation(host=True), host=True)
    RowOracle(kv_plan(), engine.allocation()).fill(9)
    device = RowOracle(kv_plan(), engine.allocation()).read([3])
    engine.swap_out([(3, 0)])

    engine.sleep(2)

    assert copies.queued[0].finished
    assert {key[:2]: held for key, held in host.read([0]).items()} == {key[:2]: held for key, held in device.items()}


def test_a_failed_transfer_is_told_once_and_the_engine_stays_awake():
    copies = HeldCopies()
    engine = open_bytes(kv_plan(), 4, 2, copies=[copies.info])
    engine.swap_out([(3, 0)])
    copies.queued[0].failure = RuntimeError("transfer failed")

    with pytest.raises(RuntimeError, match="transfer failed"):
        engine.sleep(2)
    assert engine.sleep_level == 0
    engine.sleep(2)

    assert engine.sleep_level == 2


@pytest.mark.parametrize("level", [1, 2])
def test_twice_is_once(level):
    backend = ByteBackend()
    engine = filled(backend)
    before = rows(engine)
    engine.wake()
    engine.sleep(level)
    asleep = backend.taken_nbytes
    engine.sleep(level)
    assert backend.taken_nbytes == asleep
    engine.wake()
    engine.wake()

    assert engine.generation == 2
    assert (rows(engine) == before) is (level == 1)


def test_level_2_after_1_drops_what_was_kept():
    backend = ByteBackend()
    engine = filled(backend)
    engine.sleep(1)

    engine.sleep(2)

    assert (engine.sleep_level, backend.taken_nbytes) == (2, 2560)
    engine.wake()
    assert not any(map(any, rows(engine)["full"].values()))


def test_live_blocks_at_level_2_are_refused_asleep_too():
    engine = open_bytes(kv_plan())
    engine.sleep(1)

    with pytest.raises(PlanError, match="level 2 drops all contents, so live= has no meaning"):
        engine.sleep(2, live=[0])

    assert engine.sleep_level == 1


def test_level_1_after_2_is_too_late():
    engine = filled()
    engine.sleep(2)

    with pytest.raises(EngineStateError, match=r"asleep at level 2, so its contents are gone.*call wake\(\)"):
        engine.sleep(1)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("level", [1, 2])
def test_close_while_asleep_gives_everything_back(level, stable):
    backend = StableBytes()
    engine = filled(backend, stable_addresses=stable)
    engine.sleep(level)

    engine.close()
    engine.close()

    assert backend.taken_nbytes == 0
    for verb in (engine.sleep, engine.wake, engine.stats):
        with pytest.raises(EngineStateError, match="this engine is closed"):
            verb()


def test_states_closed_on_their_own_do_not_wake():
    backend = ByteBackend()
    engine = filled(backend)
    states, full = engine.states, rows(engine)["full"]
    engine.sleep()

    states.close()
    engine.wake()

    assert RowOracle(kv_plan(), engine.allocation(group="full")).read() == full
    with pytest.raises(EngineStateError, match="this engine is closed"):
        states.zero_slots([0])
    engine.close()
    assert backend.taken_nbytes == 0


def test_a_with_block_that_ends_asleep_closes():
    backend = ByteBackend()

    with open_bytes(kv_plan(), backend=backend) as engine:
        engine.sleep()

    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("stable", [False, True])
def test_fifty_sleeps_take_no_more_memory(stable):
    backend = StableBytes()
    engine = filled(backend, stable_addresses=stable)
    before = rows(engine)

    for _ in range(50):
        engine.sleep(1)
        engine.wake()

    assert rows(engine) == before
    assert backend.taken_nbytes == 6912 + 2560
    assert len(backend.stable) == (3 if stable else 0)
    engine.close()
    assert (backend.taken_nbytes, backend.stable) == (0, {})


def test_several_groups_without_states_sleep():
    backend = ByteBackend()
    engine = open_bytes(two_groups(), {"full": 2, "sliding": 0}, backend=backend)

    engine.sleep()
    assert backend.taken_nbytes == 1024
    engine.wake()

    assert backend.taken_nbytes == 2048
