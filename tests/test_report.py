"""What a rank tells the others, and reports that do not go together."""

from __future__ import annotations

import json

import pytest
from samples import PAGE_4, POLICY, Index, kv_plan, plan_set

from cachecore import (
    AgreementError,
    BlockCacheGeometry,
    CachePlanSet,
    KvCacheConfig,
    PlanError,
    StateCacheRequest,
    build_block_cache_plan,
    plan_from_states,
)
from cachecore.holding import UNBOUNDED
from cachecore.report import REPORT_VERSION, check_alike, rank_report, read_report

STATE = plan_from_states([StateCacheRequest(name="ssm", shape=(64,), dtype="float32", layers=(7,))], POLICY)
NAMESAKE = StateCacheRequest(name="s", shape=(4,), dtype="uint8", group="full")
PLANS = plan_set(kv_plan())
HYBRID = CachePlanSet((kv_plan(), *STATE), "null", "bytes")


def shared(tp_rank=0, *, tp_size=2, layers=(0,), head_dim=16, dtype="float16"):
    """One rank's share of eight heads."""
    return build_block_cache_plan(
        kv=KvCacheConfig(
            layers=layers, dtype=dtype, num_kv_heads=8, head_dim=head_dim, tp_size=tp_size, tp_rank=tp_rank
        ),
        geometry=PAGE_4,
        device="null",
        policy=POLICY,
    )


def reports(*plans, **more):
    return [json.loads(json.dumps(rank_report(one, memory_nbytes=1 << 20, node="one", **more))) for one in plans]


def test_a_report_is_numbers_names_and_digests():
    report = rank_report(
        HYBRID,
        memory_nbytes=8192,
        ratio=0.5,
        context_length=40,
        concurrency=2,
        num_blocks={"state": 2, "elsewhere": 3},
        host_memory_nbytes=4096,
        model="llama@abc",
        node="one",
    )

    assert json.loads(json.dumps(report)) == report
    # K and V: 2 * 256 bytes in 2 layers a block, half of it padding that the host tier does not have
    assert report["groups"] == {"full": [1024, 0, 512], "state": [256, 0, 256]}
    host_groups = {"full": [512, 0, 512], "state": [256, 0, 256]}
    assert report["host"] == {"budget": 4096, "groups": host_groups, "given": {}, "concurrency": 0}
    assert (report["budget"], report["context_length"], report["concurrency"]) == (4096, 40, 2)
    assert report["holdings"] == [["0", "full", 4, None], ["0", "state", UNBOUNDED, 1]]
    assert report["given"] == {"elsewhere": 3, "state": 2}
    assert [tensor[1:2] + tensor[3:] for tensor in report["tensors"]] == [
        ["k_cache", [0, 1], None],
        ["v_cache", [0, 1], None],
        ["ssm", [7], None],
    ]


def test_a_report_tells_the_machine_when_no_node_is_given():
    assert rank_report(PLANS, memory_nbytes=1)["node"]


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"concurrency": 2}, PlanError, "give context_length"),
        ({"concurrency": 0, "context_length": 4}, PlanError, "concurrency is 0"),
        ({"context_length": 0}, PlanError, "context_length is 0"),
        ({"memory_nbytes": -1}, PlanError, "memory_nbytes is -1"),
        ({"num_blocks": {"full": -1}}, PlanError, "num_blocks of group 'full' is -1"),
        ({"host_num_blocks": 3}, PlanError, "give it too"),
        ({"host_concurrency": 3, "context_length": 4}, PlanError, "give it too"),
        ({"host_concurrency": 3, "host_memory_nbytes": 4096}, PlanError, "host_concurrency counts sequences"),
        ({"in_flight_tokens": -1}, PlanError, "in_flight_tokens is -1"),
        ({"in_flight_tokens": "1"}, TypeError, "in_flight_tokens must be an integer"),
        ({"num_blocks": {3: 4}}, TypeError, "num_blocks names group 3; expected a string"),
        ({"num_blocks": "many"}, TypeError, "num_blocks must be an integer, not 'many'"),
        ({"context_length": "4"}, TypeError, "context_length must be an integer"),
        ({"host_memory_nbytes": -1}, PlanError, "host_memory_nbytes is -1"),
        ({"model": 3}, TypeError, "model must be a string"),
        ({"node": 3}, TypeError, "node must be a string"),
    ],
)
def test_inputs_that_make_no_sense_are_refused(more, error, told):
    with pytest.raises(error, match=told):
        rank_report(PLANS, **{"memory_nbytes": 1 << 20, **more})


def test_ranks_that_share_layers_go_together():
    check_alike(reports(shared(0), shared(1)))
    check_alike(reports(shared(0, tp_size=1, layers=(0,)), shared(0, tp_size=1, layers=(1,))))
    check_alike(reports(*(shared(rank, tp_size=16) for rank in range(16))))


@pytest.mark.parametrize(
    "other", [shared(1, head_dim=32), shared(1, dtype="float32")], ids=["another head size", "another dtype"]
)
def test_ranks_of_different_models_are_told_apart(other):
    with pytest.raises(AgreementError, match=r"ranks 0 and 1 disagree on layer 0 of cache 'k_cache'") as caught:
        check_alike(reports(shared(0), other))

    assert (caught.value.rank, caught.value.layer, caught.value.cache) == (1, 0, "k_cache")


def test_ranks_of_one_tp_rank_are_told_that_heads_are_missing():
    with pytest.raises(AgreementError, match="no rank holds 4 of the 8 heads of layer 0"):
        check_alike(reports(shared(0), shared(0)))


def test_models_are_told_apart_by_name_where_layers_do_not_meet():
    first, second = (shared(0, tp_size=1, layers=(layer,)) for layer in (0, 1))

    with pytest.raises(AgreementError, match="rank 1 has model='b', but rank 0 has 'a'"):
        check_alike([*reports(first, model="a"), *reports(second, model="b")])


def test_counts_that_differ_are_told_as_counts():
    told = r"rank 1 has num_blocks=full: 3, but rank 0 has none; start all ranks with the same"

    with pytest.raises(AgreementError, match=told):
        check_alike([*reports(shared(0)), *reports(shared(1), num_blocks={"full": 3})])


@pytest.mark.parametrize(
    "more",
    [
        {"context_length": 8},
        {"context_length": 4, "concurrency": 2},
        {"context_length": 4, "num_blocks": 3},
        {"context_length": 4, "host_memory_nbytes": 100},
        {"context_length": 4, "in_flight_tokens": 8},
    ],
    ids=["length", "concurrency", "counts", "host", "in flight"],
)
def test_ranks_that_were_given_other_inputs_are_told(more):
    with pytest.raises(AgreementError, match=r"rank 1 has .*start all ranks with the same"):
        check_alike(reports(PLANS, context_length=4) + reports(PLANS, **more))


@pytest.mark.parametrize("name", ["host_num_blocks", "host_concurrency"])
def test_ranks_with_other_wants_of_the_host_tier_are_told(name):
    first, second = (reports(PLANS, host_memory_nbytes=4096, context_length=4, **{name: n}) for n in (1, 2))

    with pytest.raises(AgreementError, match=name):
        check_alike(first + second)


def test_ranks_with_another_window_are_told():
    first, second = (plan_set(kv_plan(window=window)) for window in (None, 8))
    told = "holds blocks of 4 tokens, at most 3, of group 'full' on rank 1, but blocks of 4 tokens on rank 0"

    with pytest.raises(AgreementError, match=told):
        check_alike(reports(first, second))


def test_another_model_on_another_rank_may_keep_what_the_window_of_the_first_lets_go():
    target, draft = plan_set(kv_plan(window=8)), plan_set(kv_plan(rows=1))

    check_alike(reports({"target": target}, {"target": target, "draft": draft}))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (plan_set(kv_plan(geometry=BlockCacheGeometry(8, 4))), "blocks of 8 tokens"),
        (CachePlanSet(plan_from_states([NAMESAKE], POLICY), "null", "bytes"), "one slot"),
    ],
    ids=["block size", "kind"],
)
def test_groups_of_one_name_mean_one_unit_on_all_ranks(other, told):
    with pytest.raises(
        AgreementError, match=f"holds {told} of group 'full' on rank 1, but blocks of 4 tokens on rank 0"
    ):
        check_alike(reports({"target": PLANS}, {"draft": other}))


def test_ranks_of_other_releases_are_told():
    (report,) = reports(PLANS)
    other = {**report, "policies": [["0", "full", "standard 99"]]}

    with pytest.raises(AgreementError, match="planned by policy standard 99 on rank 1, but by standard 2 on rank 0"):
        check_alike([report, other])
    with pytest.raises(AgreementError, match=f"rank 1 reports in version 7, this one in {REPORT_VERSION}"):
        check_alike([report, {**report, "version": 7}])


def test_a_rank_that_refused_its_input_is_named_with_its_reason():
    (report,) = reports(PLANS)

    with pytest.raises(AgreementError, match="rank 1 cannot be sized: PlanError: ratio is 2"):
        check_alike([report, {"error": "PlanError: ratio is 2"}])


@pytest.mark.parametrize("text", ["", "{", "[1]", '"text"', "[" * 100_000])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(AgreementError, match="rank 3 sent what is no report") as caught:
        read_report(text, 3)

    assert caught.value.rank == 3


def test_a_report_that_lacks_something_is_refused():
    (report,) = reports(PLANS)
    damaged = {name: value for name, value in report.items() if name != "groups"}

    with pytest.raises(AgreementError, match=r"rank 1 sent a damaged report: it lacks \['groups'\]") as caught:
        check_alike([report, damaged])

    assert caught.value.rank == 1


def test_numbers_that_only_count_as_integers_travel():
    report = rank_report(PLANS, memory_nbytes=Index(8192), context_length=Index(40), in_flight_tokens=Index(3))

    assert json.loads(json.dumps(report)) == report
