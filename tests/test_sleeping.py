from __future__ import annotations

import pytest
from engine_uses import EVERY_USE
from hypothesis import given
from hypothesis import strategies as st
from row_oracle import RowOracle
from samples import kv_plan, open_bytes
from sleepers import BACKENDS, filled, rows
from stable_bytes import StableBytes
from strategies import plans

from cachecore import (
    ByteBackend,
    EngineStateError,
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_level_1_keeps_every_row_of_every_group(backend):
    engine = filled(backend(), stable_addresses=backend is StableBytes)
    before, on_host = rows(engine), rows(engine, host=True)

    engine.sleep()
    engine.wake()

    assert rows(engine) == before
    assert rows(engine, host=True) == on_host


@pytest.mark.parametrize("backend", BACKENDS)
def test_level_2_comes_back_as_zeros_and_keeps_the_host_tier(backend):
    engine = filled(backend(), stable_addresses=backend is StableBytes)
    on_host = rows(engine, host=True)

    engine.sleep(level=2)
    engine.wake()

    assert not any(any(held) for found in rows(engine).values() for held in found.values())
    assert rows(engine, host=True) == on_host


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("level", [1, 2])
def test_asleep_the_device_has_its_memory_back(level, stable):
    backend = StableBytes()
    engine = filled(backend, stable_addresses=stable)

    engine.sleep(level)

    # host tier: 1 * 512 + 3 * 512 + 2 * 256; kept by level 1: 4 * 512 + 2 * 512 + 3 * 256
    assert backend.taken_nbytes == 2560 + (3840 if level == 1 else 0)
    engine.wake()
    assert backend.taken_nbytes == 6912 + 2560


def test_only_live_blocks_are_kept_and_cost_memory():
    backend = ByteBackend()
    engine = filled(backend)
    before = rows(engine)

    engine.sleep(live={"full": [3, 1, 3], "sliding": []})

    # 2 * 512 of full, nothing of sliding, all 3 * 256 of the state, which was not named
    assert backend.taken_nbytes == 2560 + 1024 + 768
    engine.wake()
    after = rows(engine)
    for name, kept in (("full", {1, 3}), ("sliding", set()), ("state", {0, 1, 2})):
        for key, held in after[name].items():
            assert held == (before[name][key] if key[2] in kept else bytes(len(held)))


def test_a_single_group_lists_its_live_blocks_without_a_name():
    engine = open_bytes(kv_plan())
    oracle = RowOracle(kv_plan(), engine.allocation())
    oracle.fill(1)
    kept = oracle.read([2])

    engine.sleep(live=[2])
    engine.wake()

    again = RowOracle(kv_plan(), engine.allocation())
    assert again.read([2]) == kept
    assert not any(map(any, again.read([0, 1, 3]).values()))


@given(plans(), st.data())
def test_any_plan_sleeps_and_wakes_with_what_was_live(plan, data):
    engine = open_bytes(plan, 4, 2)
    oracle = RowOracle(plan, engine.allocation())
    oracle.fill(5)
    live = data.draw(st.none() | st.lists(st.integers(0, 3)))
    before = oracle.read()

    engine.sleep(live=live)
    engine.wake()

    for key, held in RowOracle(plan, engine.allocation()).read().items():
        assert held == (before[key] if live is None or key[2] in live else bytes(len(held)))


WHILE_ASLEEP = {name: use for name, use in EVERY_USE.items() if name != "stats"}


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("use", WHILE_ASLEEP.values(), ids=WHILE_ASLEEP)
def test_use_while_asleep_says_so(use, stable):
    engine = open_bytes(kv_plan(), 4, 2, backend=StableBytes(), stable_addresses=stable)
    engine.sleep()

    with pytest.raises(EngineStateError, match=r"this engine is asleep; call wake\(\)"):
        use(engine)


@pytest.mark.parametrize("use", ["copy", "swap_out", "swap_in", "zero", "copy_on_device"])
def test_a_group_kept_by_the_caller_is_asleep_too(use):
    engine = open_bytes(kv_plan(), 4, 2)
    group = engine.group()
    engine.sleep()

    with pytest.raises(EngineStateError, match=r"group 'full' is asleep; call wake\(\)"):
        getattr(group, use)([])
    engine.wake()
    assert group.copy([(0, 1)]).done()


def test_states_kept_by_the_caller_sleep_along():
    engine = filled()
    states = engine.states
    engine.sleep()

    with pytest.raises(EngineStateError, match="asleep"):
        states.zero_slots([0])
    with pytest.raises(EngineStateError, match="asleep"):
        states.state_caches.layer("ssm", 0)
    engine.wake()
    assert states is engine.states
    assert states.zero_slots([0]).done()


@pytest.mark.parametrize("verb", ["sleep", "wake"])
def test_states_of_an_engine_do_not_sleep_alone(verb):
    with pytest.raises(EngineStateError, match=rf"these states belong to a CacheEngine.*call its {verb}\(\)"):
        getattr(filled().states, verb)()


def test_stats_tell_that_it_is_asleep_and_what_is_kept():
    engine = filled(StableBytes(), stable_addresses=True)
    engine.copy_blocks([(0, 1)], group="full")
    # 4 blocks of 1,024 bytes are one page of 4,096; 2 blocks of 1,024 take one, too
    awake = [(group.reserved_nbytes, group.saved_nbytes, group.stable_addresses) for group in engine.stats().groups]
    assert awake == [(4096, 0, True), (4096, 0, True)]

    engine.sleep(live={"full": [1]})

    told = engine.stats()
    assert (engine.sleep_level, told.sleep_level) == (1, 1)
    assert [(group.nbytes, group.reserved_nbytes, group.saved_nbytes) for group in told.groups] == [
        (0, 0, 512),
        (0, 0, 1024),
    ]
    engine.wake()
    assert engine.stats().sleep_level == 0
    assert engine.stats().groups[0].copies[0].num_calls == 1


def test_counts_go_on_after_a_sleep():
    engine = open_bytes(kv_plan(), 4, 2)
    engine.copy_blocks([(0, 1)])
    engine.sleep(2)
    engine.wake()

    engine.copy_blocks([(0, 1)])

    assert (engine.stats().groups[0].copies[0].num_calls, engine.stats().groups[0].copies[0].num_blocks) == (2, 2)
