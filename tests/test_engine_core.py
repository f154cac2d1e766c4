from __future__ import annotations

import pytest
from engine_uses import EVERY_USE
from held_copies import HeldCopies
from samples import COUNTS, HOST_COUNTS, POLICY, Index, kv_plan, open_bytes, plan_set, three_groups, two_groups

from cachecore import (
    ByteBackend,
    CacheEngine,
    CacheLookupError,
    EngineStateError,
    PlanError,
    StateCacheEngine,
)


def test_every_group_has_its_own_counts():
    engine = open_bytes(two_groups(), {"full": 4, "sliding": 2}, {"full": 1, "sliding": 0})

    full, sliding = engine.stats().groups
    assert (full.num_blocks, full.num_host_blocks, sliding.num_blocks, sliding.num_host_blocks) == (4, 1, 2, 0)
    assert (full.nbytes, full.reserved_nbytes, full.host_nbytes, full.host_reserved_nbytes) == (4096, 4096, 512, 512)
    assert (full.memory_kind, full.host_memory_kind, sliding.host_memory_kind) == ("null", "host", None)


def test_an_engine_takes_exactly_what_sizing_says():
    backend = ByteBackend()

    open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    # device: 4 * 1,024 + 2 * 1,024 + 3 * 256; host: 1 * 512 + 3 * 512 + 2 * 256
    assert backend.taken_nbytes == 6912 + 2560


def test_an_engine_shows_itself_in_a_line():
    engine = open_bytes(three_groups(), {"full": 4, "sliding": 2, "state": 3}, {"full": 1, "sliding": 0, "state": 0})
    told = "full 4 blocks and 1 on the host, sliding 2 blocks"

    assert repr(engine) == f"<CacheEngine of backend 'bytes' on null, open: {told}, state 3 slots>"
    assert repr(engine.states) == "<StateCacheEngine of backend 'bytes' on null, open: state 3 slots>"
    engine.sleep(2)
    assert "on null, asleep at level 2: full 4 blocks" in repr(engine)
    engine.close()
    assert "on null, closed: full 4 blocks" in repr(engine)


def test_one_number_counts_for_a_single_group():
    assert open_bytes(kv_plan(), Index(5), 2).stats().groups[0].num_host_blocks == 2


@pytest.mark.parametrize(
    ("counts", "host_counts", "error", "message"),
    [
        (4, 0, PlanError, "counts is 4, but the plan has groups full, sliding; give one each"),
        ({"full": 4}, 0, PlanError, "counts names group 'full', but the plan has groups 'full', 'sliding'"),
        ({"full": 4, "sliding": 1, "draft": 1}, 0, PlanError, "counts names groups? .*draft"),
        ({"full": 4, "sliding": -1}, 0, PlanError, "counts of group 'sliding' is -1; expected zero or more"),
        ({"full": 4, "sliding": 1.0}, 0, TypeError, "counts of group 'sliding' must be an integer"),
        ({"full": 4, "sliding": 1}, {"full": 4}, PlanError, "host_counts names group 'full'"),
    ],
)
def test_counts_that_do_not_match_the_groups_are_refused(counts, host_counts, error, message):
    backend = ByteBackend()

    with pytest.raises(error, match=message):
        open_bytes(two_groups(), counts, host_counts, backend=backend)

    assert backend.taken_nbytes == 0


@pytest.mark.parametrize(("name", "version"), [("camb", "2"), ("standard", "1")])
def test_a_plan_of_another_policy_is_refused(name, version):
    class Camb(type(POLICY)):
        pass

    Camb.name, Camb.version = name, version
    backend = ByteBackend(Camb())

    with pytest.raises(
        PlanError, match=r"group 'full': the plan was laid out by policy 'standard' version 2, but"
    ) as caught:
        open_bytes(kv_plan(), backend=backend)

    assert "plan again for this backend" in str(caught.value)
    assert (caught.value.group, backend.taken_nbytes) == ("full", 0)


def test_a_backend_may_declare_that_it_serves_another_policy():
    class Lenient(ByteBackend):
        def serves_layout(self, layout, policy, version):
            return None if layout.kind == "packed" else "packed only"

    class Camb(type(POLICY)):
        name = "camb"

    assert open_bytes(kv_plan(), backend=Lenient(Camb())).stats().groups[0].num_blocks == 4


def test_close_gives_everything_back_once():
    backend = ByteBackend()
    engine = open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)
    assert engine.generation == 1

    engine.close()
    engine.close()

    assert (backend.taken_nbytes, engine.generation) == (0, 2)


def test_a_with_block_closes():
    backend = ByteBackend()

    with open_bytes(kv_plan(), backend=backend) as engine:
        assert backend.taken_nbytes == 4096
    with pytest.raises(EngineStateError):
        engine.stats()

    assert backend.taken_nbytes == 0


def test_a_failure_in_a_with_block_still_closes():
    backend = ByteBackend()

    with pytest.raises(KeyError, match=r"mine"), open_bytes(kv_plan(), backend=backend):
        raise KeyError("mine")

    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("use", EVERY_USE.values(), ids=EVERY_USE)
def test_use_after_close_says_so(use):
    engine = open_bytes(kv_plan(), 4, 2)
    engine.close()

    with pytest.raises(EngineStateError, match=r"this engine is closed; open another with open_engine\(\)"):
        use(engine)


def test_a_failed_transfer_of_one_group_keeps_no_memory_of_another():
    backend, copies = ByteBackend(), HeldCopies()
    engine = open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend, copies=[copies.info])
    engine.swap_out([(0, 0)], group="full")
    engine.swap_out([(0, 0)], group="sliding")
    copies.queued[0].failure = RuntimeError("transfer failed")

    with pytest.raises(RuntimeError, match=r"transfer failed"):
        engine.close()

    assert backend.taken_nbytes == 0
    assert copies.queued[1].finished
    engine.close()


def test_the_group_may_be_left_out_when_there_is_only_one():
    assert open_bytes(kv_plan()).allocation().num_entries == 4


def test_the_group_must_be_named_when_there_are_several():
    engine = open_bytes(two_groups(), {"full": 4, "sliding": 2})

    with pytest.raises(PlanError, match=r"this engine has groups full, sliding; say which with group="):
        engine.copy_blocks([(0, 1)])
    assert engine.copy_blocks([(0, 1)], group="sliding").done()


def test_an_unknown_group_is_a_lookup_error():
    with pytest.raises(CacheLookupError, match=r"group 'draft' does not exist; the groups are full") as caught:
        open_bytes(kv_plan()).swap_in([], group="draft")

    assert caught.value.group == "draft"


def test_ids_are_those_of_the_group():
    engine = open_bytes(two_groups(), {"full": 4, "sliding": 2})

    with pytest.raises(IndexError, match=r"destination block 2 is out of range; this side has 2 blocks"):
        engine.copy_blocks([(0, 2)], group="sliding")
    assert engine.copy_blocks([(0, 2)], group="full").done()


def test_the_device_is_the_plans_unless_another_is_named():
    plans = plan_set(kv_plan())

    assert str(CacheEngine(plans, 1, backend=ByteBackend(), copies=[]).device) == "null"
    assert str(CacheEngine(plans, 1, backend=ByteBackend(), copies=[], device="null:3").device) == "null:3"
    with pytest.raises(PlanError, match=r"device 'NULL' is not understood"):
        CacheEngine(plans, 1, backend=ByteBackend(), copies=[], device="NULL")


@pytest.mark.parametrize("engine", [CacheEngine, StateCacheEngine])
def test_an_engine_of_wrong_parts_is_a_type_error(engine):
    with pytest.raises(TypeError, match="plans must be a CachePlanSet, not None"):
        engine(None, 4, backend=ByteBackend(), copies=())


def test_an_engine_wants_a_backend():
    with pytest.raises(TypeError, match="backend must be a CacheBackend, not None"):
        CacheEngine(plan_set(kv_plan()), 4, backend=None, copies=())


def test_a_closed_engine_is_not_entered_again():
    engine = open_bytes(kv_plan(), 2)
    engine.close()

    with pytest.raises(EngineStateError, match="closed"):
        engine.__enter__()
