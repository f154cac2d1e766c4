from __future__ import annotations

import pytest
from held_copies import HeldCopies
from samples import kv_plan, open_bytes
from stable_bytes import StableBytes

from cachecore import (
    ByteBackend,
    EngineStateError,
)


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
