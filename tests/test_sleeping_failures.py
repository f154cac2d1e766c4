from __future__ import annotations

import pytest
from held_copies import HeldCopies
from row_oracle import RowOracle
from samples import kv_plan, open_bytes
from sleepers import filled, rows
from stable_bytes import StableBytes

from cachecore import (
    AllocationError,
    BlockCopyInfo,
    ByteBackend,
    EngineStateError,
    PluginError,
)
from cachecore.reference import BYTE_COPY


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


def test_a_copy_missing_after_a_failed_move_is_built_at_the_next_wake():
    class Moving(StableBytes):
        moves = True

        def restore(self, allocation):
            if not self.moves:
                return super().restore(allocation)
            return self.allocate_stable(allocation.layout, allocation.num_entries, allocation.device)

    def build(context):
        if broken and not context.same_allocation:
            raise OSError("no stream")
        return BYTE_COPY.build(context)

    backend, broken = Moving(), []
    copies = [BlockCopyInfo("a", 1, lambda src, dst: None, build)]
    engine = open_bytes(kv_plan(), 4, 2, backend=backend, copies=copies, stable_addresses=True)
    engine.sleep(2)
    broken.append(True)
    with pytest.raises(PluginError, match="no stream"):
        engine.wake()
    broken.clear()
    backend.moves = False

    engine.wake()

    engine.block_caches.layer("k_cache", 1).frombytes(b"\1" * 512)
    engine.swap_out([(0, 1)]).synchronize()
    engine.zero_blocks([0])
    engine.swap_in([(1, 0)]).synchronize()
    assert engine.block_caches.layer("k_cache", 1).tobytes() == b"\1" * 512


def test_a_release_that_fails_in_a_failed_wake_is_told_and_keeps_no_other_group():
    class Stuck(ByteBackend):
        stuck = ()

        def release(self, allocation):
            super().release(allocation)
            if self.stuck:
                self.stuck = ()
                raise OSError("the device does not answer")

    backend, copies = Stuck(), HeldCopies()
    engine = filled(backend, copies=[copies.info])
    engine.sleep()
    asleep, copies.broken, backend.stuck = backend.taken_nbytes, True, ("full",)

    with pytest.raises(OSError, match="the stream is gone") as caught:
        engine.wake()

    assert caught.value.__notes__ == ["giving back what was taken failed too: OSError('the device does not answer')"]
    assert (backend.taken_nbytes, engine.sleep_level) == (asleep, 1)


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
