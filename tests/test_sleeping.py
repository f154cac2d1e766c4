from __future__ import annotations

import pytest
from engine_uses import EVERY_USE
from held_copies import HeldCopies
from hypothesis import given
from hypothesis import strategies as st
from row_oracle import RowOracle
from samples import COUNTS, HOST_COUNTS, kv_plan, open_bytes, three_groups, two_groups
from stable_bytes import StableBytes
from strategies import plans

from cachecore import (
    AllocationError,
    BlockCopyInfo,
    BlockIndexError,
    ByteBackend,
    CacheLookupError,
    EngineStateError,
    PlanError,
    PluginError,
)
from cachecore.reference import BYTE_COPY


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


# -- asleep -------------------------------------------------------------------------------------

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


# -- views and generation -----------------------------------------------------------------------


def test_views_are_made_anew_under_the_same_name():
    engine = open_bytes(kv_plan())
    named, old, layers = engine.block_caches, engine.block_caches.layer("k_cache", 1), engine.layer_caches

    engine.sleep()
    asleep = engine.generation
    engine.wake()

    assert (asleep, engine.generation) == (2, 2)
    assert engine.block_caches is named
    assert named.layer("k_cache", 1) is not old
    named.layer("k_cache", 1).frombytes(b"\7" * len(old.tobytes()))
    assert set(engine.layer_caches[1][0].tobytes()) == {7}
    assert set(layers[1][0].tobytes()) == {0}
    assert named["k_cache"].tobytes()[-len(old.tobytes()) :] == named.layer("k_cache", 1).tobytes()


def test_stable_addresses_keep_views_copies_and_generation():
    copies = HeldCopies()
    engine = open_bytes(kv_plan(), 4, 2, backend=StableBytes(), stable_addresses=True, copies=[copies.info])
    old, layers, allocation = engine.block_caches.layer("k_cache", 1), engine.layer_caches, engine.allocation()
    built = copies.num_built

    engine.sleep(2)
    engine.wake()

    assert engine.generation == 1
    assert engine.block_caches.layer("k_cache", 1) is old
    assert engine.layer_caches == layers
    assert engine.allocation() is allocation
    assert copies.num_built == built


def test_a_backend_that_moved_nonetheless_is_told_by_the_generation():
    class Moving(StableBytes):
        def restore(self, allocation):
            return self.allocate_stable(allocation.layout, allocation.num_entries, allocation.device)

    engine = open_bytes(kv_plan(), backend=Moving(), stable_addresses=True)
    old = engine.block_caches.layer("k_cache", 1)

    engine.sleep(2)
    engine.wake()

    assert engine.generation == 2
    moved = engine.block_caches.layer("k_cache", 1)
    assert moved is not old
    moved.frombytes(b"\1" * 128 + bytes(384))
    engine.copy_blocks([(0, 1)])
    assert moved.tobytes() == b"\1" * 256 + bytes(256)


def test_a_backend_without_stable_addresses_is_refused_before_anything_is_taken():
    backend = ByteBackend()

    with pytest.raises(EngineStateError, match=r"stable_addresses=True, but backend 'bytes' cannot .*: .*declare"):
        open_bytes(kv_plan(), backend=backend, stable_addresses=True)

    assert backend.taken_nbytes == 0


# -- refused, failed and repeated ---------------------------------------------------------------


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


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("taken", [1, 768, 769, 3072, 6912])
def test_a_wake_without_memory_stays_asleep_with_its_contents(taken, stable):
    backend = StableBytes(capacity_nbytes=9472 + 3840)
    engine = filled(backend, stable_addresses=stable)
    before = rows(engine)
    engine.sleep()
    backend.taken_nbytes += taken  # another engine's

    with pytest.raises(AllocationError, match=r"wake\(\) needs 6912 bytes on null, where \d+ are free") as caught:
        engine.wake()

    assert "stays asleep, its contents kept in host memory. Free memory there and call wake() again" in str(
        caught.value
    )
    assert (caught.value.needed_nbytes, caught.value.free_nbytes) == (6912, 6912 - taken)
    assert engine.sleep_level == 1
    with pytest.raises(EngineStateError, match="asleep"):
        engine.block_caches.layer("k_cache", 0)
    backend.taken_nbytes -= taken
    engine.wake()
    assert rows(engine) == before


@pytest.mark.parametrize("fail_at", range(10))
def test_a_wake_that_cannot_make_views_stays_asleep_with_its_contents(fail_at):
    class Blind(ByteBackend):
        left = None

        def row_view(self, *given):
            if self.left == 0:
                raise OSError("no view")
            self.left = None if self.left is None else self.left - 1
            return super().row_view(*given)

    backend = Blind()
    engine = filled(backend)
    before = rows(engine)
    engine.sleep()
    asleep = backend.taken_nbytes
    # K and V with two rows each in two groups, and one row of the state
    backend.left = fail_at

    if fail_at == 9:
        engine.wake()
    else:
        with pytest.raises(RuntimeError, match="no view"):
            engine.wake()
        assert (backend.taken_nbytes, engine.sleep_level) == (asleep, 1)
        with pytest.raises(EngineStateError, match="asleep"):
            engine.block_caches.layer("k_cache", 0)
        backend.left = None
        engine.wake()

    assert rows(engine) == before


@pytest.mark.parametrize("fail_at", range(9))
def test_a_copy_that_cannot_be_built_at_wake_leaves_it_asleep(fail_at):
    # three directions in each of three groups; what puts contents back comes after them
    left = [None]

    def build(context):
        if left[0] == 0:
            raise OSError("no stream")
        left[0] = None if left[0] is None else left[0] - 1
        return BYTE_COPY.build(context)

    backend = ByteBackend()
    engine = filled(backend, copies=[BlockCopyInfo("a", 1, lambda src, dst: None, build)])
    before = rows(engine)
    engine.sleep()
    asleep, left[0] = backend.taken_nbytes, fail_at

    with pytest.raises(PluginError, match="no stream"):
        engine.wake()

    assert (backend.taken_nbytes, engine.sleep_level) == (asleep, 1)
    left[0] = None
    engine.wake()
    assert rows(engine) == before


def test_a_copy_that_fails_while_contents_are_kept_leaves_it_awake():
    backend, copies = ByteBackend(), HeldCopies()
    engine = open_bytes(kv_plan(), backend=backend, copies=[copies.info])
    copies.broken = True

    with pytest.raises(OSError, match="the stream is gone"):
        engine.sleep()

    assert (backend.taken_nbytes, engine.sleep_level) == (4096, 0)
    assert set(engine.block_caches.layer("k_cache", 0).tobytes()) == {0}


def test_a_copy_that_fails_while_contents_come_back_leaves_it_asleep():
    backend, copies = ByteBackend(), HeldCopies()
    engine = open_bytes(kv_plan(), backend=backend, copies=[copies.info])
    oracle = RowOracle(kv_plan(), engine.allocation())
    oracle.fill(6)
    before = oracle.read()
    engine.sleep()
    copies.broken = True

    with pytest.raises(OSError, match="the stream is gone"):
        engine.wake()

    assert (backend.taken_nbytes, engine.sleep_level) == (2048, 1)
    copies.broken = False
    engine.wake()
    assert RowOracle(kv_plan(), engine.allocation()).read() == before


def test_a_release_that_fails_is_told_and_the_engine_sleeps():
    class Stuck(ByteBackend):
        def release(self, allocation):
            super().release(allocation)
            raise OSError("the device does not answer")

    backend = Stuck()
    engine = filled(backend)

    with pytest.raises(OSError, match="does not answer"):
        engine.sleep(2)

    assert (backend.taken_nbytes, engine.sleep_level) == (2560, 2)
    engine.close()
    assert backend.taken_nbytes == 0


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
