from __future__ import annotations

import json

from held_copies import HeldCopies
from samples import kv_plan, open_bytes, plan_set

from cachecore import BlockCopyInfo
from cachecore.reference import BYTE_COPY
from cachecore.transfer import ByteCopy


def test_an_engine_tells_the_way_of_every_copy():
    copies = HeldCopies()
    slow = BlockCopyInfo("two-sided", 90, lambda src, dst: "needs peer access", ByteCopy)

    stats = open_bytes(kv_plan(), 4, 2, copies=[copies.info, slow, BYTE_COPY]).stats()

    (group,) = stats.groups
    assert (stats.backend, stats.device, group.group) == ("bytes", "null", "full")
    assert [
        (copy.direction, copy.path, copy.record, copy.fallback, copy.workspace_nbytes) for copy in group.copies
    ] == [(direction, "held", "held", False, 64) for direction in ("copy", "swap_out", "swap_in")]
    assert {copy.passed_over for copy in group.copies} == {(("two-sided", "needs peer access"),)}
    assert (stats.num_fallback_calls, stats.fallback_reasons) == (0, ())


def test_a_fallback_counts_with_its_reason():
    own = BlockCopyInfo(
        "device-only", 50, lambda src, dst: None if src.memory_kind == dst.memory_kind else "one device only", ByteCopy
    )
    engine = open_bytes(
        plan_set(kv_plan(), kv_plan(group="sliding", tag="_2")),
        {"full": 4, "sliding": 4},
        {"full": 2, "sliding": 0},
        copies=[own],
    )

    engine.copy_blocks([(0, 1)], group="full")
    engine.swap_out([(0, 0), (1, 1)], group="full")
    engine.swap_in([(0, 3)], group="full")
    stats = engine.stats()

    assert stats.num_fallback_calls == 2
    assert stats.fallback_reasons == tuple(
        f"group 'full', {direction}: no block copy serves it (device-only: one device only)"
        for direction in ("swap_out", "swap_in")
    )


def test_no_record_at_all_is_a_reason_too():
    stats = open_bytes(kv_plan(), copies=[]).stats()

    assert stats.fallback_reasons == ("group 'full', copy: no block copy serves it (none is installed)",)
    assert stats.num_fallback_calls == 0


def test_a_snapshot_does_not_change():
    engine = open_bytes(kv_plan())
    before = engine.stats().to_json()
    snapshot = engine.stats()

    engine.copy_blocks([(0, 1)])

    assert snapshot.to_json() == before
    assert engine.stats().groups[0].copies[0].num_calls == 1


def test_json_has_the_bytes_moved():
    engine = open_bytes(kv_plan())
    engine.copy_blocks([(0, 1), (2, 3)])

    data = json.loads(json.dumps(engine.stats().to_json()))

    copy = data["groups"][0]["copies"][0]
    # 2 blocks of 2 layers * 512 bytes
    assert (copy["num_blocks"], copy["block_nbytes"], copy["nbytes"]) == (2, 1024, 2048)
    assert set(data) == {"backend", "device", "groups", "num_fallback_calls", "fallback_reasons", "sleep_level"}
