"""Actors on three nodes agree, or the driver and the survivors hear in time why not."""

from __future__ import annotations

import time

import pytest
import ray
from cachecore_ray import agree_on_actors
from stage_ranks import BLOCK, SLOT, StageRank, stage

from cachecore import AgreementError, AllocationError, PlanError, sizing

pytestmark = pytest.mark.usefixtures("cluster")

SHARES = ((range(3), 90), (range(3, 5), 64), (range(5, 8), 99))
"""Layers of each stage and blocks' worth of memory a layer."""

LIMIT_S = 30.0


@pytest.fixture
def start():
    """Start an actor a rank, on a node each unless told otherwise; all are ended afterwards."""
    started = []

    def start_ranks(*more, shares=SHARES, hosts=("host0", "host1", "host2"), **shared):
        for rank, ((layers, blocks), host) in enumerate(zip(shares, hosts, strict=True)):
            options = {"memory": {"memory_nbytes": blocks * BLOCK, **shared}}
            options |= dict(more).get(rank, {})
            started.append(StageRank.options(resources={host: 1}).remote(layers, **options))
        return started

    yield start_ranks
    for actor in started:
        ray.kill(actor)


def test_stages_on_several_nodes_agree_and_open_at_the_agreed_counts(start):
    actors = start()

    agreement = agree_on_actors(actors, timeout_s=LIMIT_S)

    # 90 // 3, 64 // 2 and 99 // 3 blocks
    assert agreement.counts == {"full": 30}
    assert agreement.spare_nbytes == (0, 4 * BLOCK, 9 * BLOCK)
    assert (agreement.padding_nbytes, agreement.longest_sequence) == ((0, 0, 0), 120)
    assert len(set(ray.get([actor.where.remote() for actor in actors]))) == 3
    assert ray.get([actor.agreed.remote() for actor in actors]) == [{"full": 30}] * 3
    taken = ray.get([actor.open_and_close.remote() for actor in actors])
    assert taken == [[90 * BLOCK, 90 * BLOCK], [60 * BLOCK, 64 * BLOCK], [90 * BLOCK, 99 * BLOCK]]
    assert taken[0][0] == sizing.reserved_nbytes(stage(range(3)), {"full": 30})


def test_stages_with_states_agree_on_slots_too(start):
    actors = start((1, {"state_layers": (8, 9)}))

    agreement = agree_on_actors(actors, timeout_s=LIMIT_S, num_blocks={"state": 6})

    # 64 blocks' worth of one layer: 6 slots of 2 layers take 6, the other 58 hold 29 blocks of 2 layers
    assert agreement.counts == {"full": 29, "state": 6}
    assert ray.get(actors[1].open_and_close.remote()) == [58 * BLOCK + 12 * SLOT, 64 * BLOCK]


def test_what_the_driver_wants_is_asked_of_every_rank(start):
    actors = start()

    # a sequence of 40 tokens holds 10 blocks
    assert agree_on_actors(actors, timeout_s=LIMIT_S, context_length=40, concurrency=3).num_requests == 3
    assert agree_on_actors(actors, timeout_s=LIMIT_S, num_blocks={"full": 7}).counts == {"full": 7}
    with pytest.raises(AllocationError) as caught:
        agree_on_actors(actors, timeout_s=LIMIT_S, context_length=44, concurrency=3)
    assert caught.value.longest_sequence == 40
    told = ray.get([actor.agreed.remote() for actor in actors])
    assert told == [str(caught.value)] * 3
    assert "3 sequences of 44 tokens" in told[0]
    assert "3 do up to 40 tokens each" in told[0]


def test_ranks_of_one_node_share_its_host_memory(start):
    actors = start(hosts=("host0", "host0", "host1"), host_memory_nbytes=55 * BLOCK)

    agreement = agree_on_actors(actors, timeout_s=LIMIT_S)

    # five layers on the first node: 55 // 5 blocks; three on the other
    assert agreement.host_counts == {"full": 11}
    assert sorted(agreement.host_spare_nbytes.values()) == [0, (55 - 33) * BLOCK]
    assert (agreement.host_longest_sequence, sum(agreement.host_padding_nbytes.values())) == (44, 0)


def test_a_second_agreement_takes_the_place_of_the_first(start):
    actors = start()
    agree_on_actors(actors, timeout_s=LIMIT_S)

    agree_on_actors(actors, timeout_s=LIMIT_S, ratio=0.5)

    assert ray.get([actor.agreed.remote() for actor in actors]) == [{"full": 15}] * 3


def failing(actors, survivors, limit_s=LIMIT_S, kind=AgreementError, more=None):
    """The driver's error, which the survivors have been told too; in time, without an earlier agreement left."""
    started = time.monotonic()
    with pytest.raises(kind) as caught:
        agree_on_actors(actors, timeout_s=limit_s, **(more or {}))
    assert time.monotonic() - started < limit_s + 1
    told = ray.get([actors[rank].agreed.remote() for rank in survivors], timeout=10)
    assert told == [str(caught.value)] * len(survivors)
    return caught.value


@pytest.mark.parametrize("state_layers", [(), (8, 9)], ids=["blocks", "blocks and states"])
@pytest.mark.parametrize("step", ["plan", "take", "taken"])
def test_an_actor_that_dies_at_any_step_is_named_to_the_driver_and_to_the_survivors(start, step, state_layers):
    actors = start((1, {"trouble": {step: "die"}, "state_layers": state_layers}), (2, {"state_layers": (10,)}))

    error = failing(actors, (0, 2), more={"num_blocks": {"state": 2}})

    assert str(error).startswith("rank 1 is gone: ")
    assert (error.rank, error.missing) == (1, [1])


def test_an_actor_that_is_dead_already_is_named(start):
    actors = start()
    agree_on_actors(actors, timeout_s=LIMIT_S)
    ray.kill(actors[2])

    assert failing(actors, (0, 1)).rank == 2


@pytest.mark.parametrize("step", ["plan", "take"])
def test_a_slow_actor_is_named_and_hears_it_when_it_answers_again(start, step):
    actors = start((0, {"trouble": {step: "sleep"}}))
    ray.get([actor.where.remote() for actor in actors])

    error = failing(actors, (1, 2), limit_s=2)

    assert str(error) == "rank 0 did not answer in time (limit 2 s); see the log of that actor"
    assert error.missing == [0]
    assert ray.get(actors[0].agreed.remote(), timeout=20) == str(error)


def test_an_actor_that_cannot_be_placed_is_named(start):
    actors = start(hosts=("host0", "no such host", "host2"))
    ray.get([actors[rank].where.remote() for rank in (0, 2)])  # a busy machine starts them slowly

    assert failing(actors, (0, 2), limit_s=2).missing == [1]


@pytest.mark.parametrize("step", ["plan", "take"])
def test_an_actor_that_fails_is_named_with_its_reason(start, step):
    actors = start((1, {"trouble": {step: "raise"}}))

    assert str(failing(actors, (0, 1, 2))).startswith("rank 1 failed: OSError: the driver is wedged")


def test_an_actor_of_another_model_is_told_apart(start):
    actors = start((1, {"head_dim": 128}), shares=((range(3), 90), (range(3), 90), (range(5, 8), 99)))

    assert "ranks 0 and 1 disagree on layer 0 of cache 'k_cache'" in str(failing(actors, (0, 1, 2)))


def test_an_actor_that_refuses_its_input_is_named(start):
    actors = start((1, {"memory": {"memory_nbytes": -5}}))

    assert "rank 1 cannot be sized: PlanError: memory_nbytes is -5" in str(failing(actors, (0, 1, 2)))


def test_memory_too_small_on_one_node_is_told_to_all(start):
    actors = start((2, {"memory": {"memory_nbytes": 3 * BLOCK - 1}}))

    error = failing(actors, (0, 1, 2), kind=AllocationError)

    assert (error.where, error.needed_nbytes, error.free_nbytes) == ("rank 2", 3 * BLOCK, 3 * BLOCK - 1)


def test_a_lost_node_is_named_within_the_limit(start, cluster):
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"lost": 1})
    actors = start(hosts=("host0", "host1", "lost"))
    agree_on_actors(actors, timeout_s=LIMIT_S)
    cluster.remove_node(node, allow_graceful=False)
    gone = time.monotonic() + 30
    while sum(one["Alive"] for one in ray.nodes()) > 3 and time.monotonic() < gone:
        time.sleep(0.1)  # until the cluster has noticed, the actor may still answer

    assert failing(actors, (0, 1)).rank == 2


def test_no_actors_are_refused():
    with pytest.raises(PlanError, match="no actors given"):
        agree_on_actors([])


class Count:
    """An integer that is not Python's."""

    def __index__(self):
        return 40


def test_integers_of_any_kind_travel(start):
    assert agree_on_actors(start(), timeout_s=LIMIT_S, context_length=Count()).num_requests == 3


@pytest.mark.parametrize(
    ("actors", "more", "kind", "told"),
    [
        (3, {}, TypeError, "actors must be a sequence, not 3"),
        ([object()], {}, TypeError, "actor 0 must be the handle of an actor whose class inherits CacheRank"),
        (None, {"timeout_s": 0}, PlanError, "timeout_s is 0; expected a number of seconds above 0"),
        (None, {"timeout_s": "long"}, TypeError, "timeout_s must be a number of seconds, not 'long'"),
        (None, {"model": object()}, TypeError, r"an argument for all ranks \(or a part of it\) must be an integer"),
    ],
)
def test_what_makes_no_sense_is_refused_before_an_actor_is_asked(start, actors, more, kind, told):
    with pytest.raises(kind, match=told):
        agree_on_actors(start() if actors is None else actors, **more)


def test_an_argument_that_is_none_is_told_by_every_actor(start):
    error = failing(start(), (0, 1, 2), more={"contxt_length": 3})

    assert "rank 0 cannot be sized: TypeError" in str(error)
    assert "contxt_length" in str(error)


def test_memory_that_is_no_mapping_is_told(start):
    error = failing(start((1, {"memory": None})), (0, 1, 2))

    assert "rank 1 cannot be sized: TypeError: cache_memory() must return a mapping" in str(error)
