"""Ranks that are processes: all agree, or all that are alive hear in time why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cachecore_torch_default import TorchCommunicator

from cachecore import EngineStateError, PlanError

SCRIPT = Path(__file__).with_name("rank_processes.py")
ALIVE = (0, 1, 3)
LIMIT_S = 2.0
SLACK_S = 8.0
"""A busy machine may let processes wait; what matters is that nobody waits for the process group's own minutes."""

GROUPS = (
    ("all_agree", "a_subgroup_agrees", "one_has_another_model", "one_is_given_nonsense", "one_cannot_open"),
    (
        "one_is_late_and_comes_again",
        "one_comes_after_rank_0_gave_up_waiting",
        "one_never_comes",
        "rank_0_never_comes",
    ),
    ("all_end_with_calls_that_nobody_answers",),
    (
        "one_dies_before",
        "rank_0_dies_before",
        "one_dies_while_it_sends",
        "one_dies_waiting_for_the_answer",
        "one_dies_and_another_is_slow",
        "rank_0_dies_before_it_answers",
        "one_dies_between_two_rounds",
        "one_dies_after",
    ),
)


def run_group(names: tuple[str, ...], backend: str = "gloo") -> dict[str, list[dict[str, object] | None]]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT), backend, *names],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # gloo of torch 2.8 and older prints lines of its own before


@pytest.fixture(scope="module")
def seen() -> dict[str, list[dict[str, object] | None]]:
    """What every rank of every scenario saw."""
    if not dist.is_available() or not dist.is_gloo_available() or not hasattr(os, "fork"):
        pytest.skip("this torch has no gloo, or this system no fork")
    with ThreadPoolExecutor(len(GROUPS)) as threads:
        return {name: saw for group in threads.map(run_group, GROUPS) for name, saw in group.items()}


def answers(seen, name):
    return [rank["answer"] if rank else None for rank in seen[name]]


def test_four_processes_agree_on_what_the_smallest_can_hold(seen):
    # five layers: K and V of 16 tokens, 4 of 8 heads, 64 dims in bfloat16 are 81,920 bytes a block; 40 MiB hold 512.
    # Four heads of 64 * 64 float32 are 65,536 bytes a slot; 16 of them take 1 MiB.
    counts = {"full": 512, "state": 16}
    assert answers(seen, "all_agree")[0][0] == [counts, [10 << 20, 0, 27262976, 27262976], None]
    host_counts = {"full": ((1 << 20) - 4 * 65536) // (2 * 81920 + 2 * 49152), "state": 1}
    assert answers(seen, "all_agree")[0][1][2] == host_counts
    assert answers(seen, "all_agree") == [answers(seen, "all_agree")[0]] * 4


def test_members_of_a_subgroup_agree_among_themselves(seen):
    assert answers(seen, "a_subgroup_agrees") == [None, ["of 1", "of 3"], None, ["of 1", "of 3"]]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("one_has_another_model", "ranks 2 and 3 disagree on layer 5 of cache 'k_cache'"),
        ("one_is_given_nonsense", "memory_nbytes is -1; expected zero or more"),
        ("one_cannot_open", "rank 2 could not open its engine: MemoryError: none left"),
    ],
)
def test_all_processes_hear_what_one_has_wrong(seen, name, told):
    assert all(told in rank["error"] for rank in seen[name])


@pytest.mark.parametrize(
    ("name", "limit_s"),
    [
        ("one_never_comes", LIMIT_S),
        ("one_dies_before", 0),
        ("one_dies_while_it_sends", 0),
        ("one_dies_waiting_for_the_answer", 0),
        ("one_dies_and_another_is_slow", 0),
        ("all_end_with_calls_that_nobody_answers", LIMIT_S),
        ("one_dies_between_two_rounds", 0),
    ],
)
def test_all_living_ranks_name_the_one_that_is_missing_or_dead_in_time(seen, name, limit_s):
    for rank in (seen[name][number] for number in ALIVE):
        assert rank["error"].startswith("AgreementError: rank 2 is ")
        assert rank["missing"] == [2]
        assert rank["seconds"] < limit_s + SLACK_S


def test_a_rank_that_comes_while_the_others_are_being_told_hears_that_it_was_late(seen):
    for rank in seen["one_comes_after_rank_0_gave_up_waiting"]:
        assert rank["error"] == "AgreementError: rank 2 is not there within 1 s; see the log of that process"


def test_interpreters_end_as_they_want_though_calls_to_a_rank_that_hangs_are_pending(seen):
    """A thread that comes back from torch into an interpreter that is torn down aborted the process."""
    ends = [rank["end"] for rank in seen["all_end_with_calls_that_nobody_answers"]]

    assert ends == [3, 3, 9, 3]


@pytest.mark.parametrize("name", ["rank_0_never_comes", "rank_0_dies_before", "rank_0_dies_before_it_answers"])
def test_all_living_ranks_hear_that_the_first_is_missing_or_dead(seen, name):
    for rank in seen[name][1:]:
        assert rank["error"].startswith("AgreementError: rank 0 ")
        assert rank["missing"] == [0]
        assert rank["seconds"] < LIMIT_S + SLACK_S


def test_a_late_rank_hears_the_same_and_may_come_again(seen):
    expected = [
        "rank 2 is not there within 1 s; see the log of that process",
        ["again 0", "again 1", "again 2", "again 3"],
    ]

    assert answers(seen, "one_is_late_and_comes_again") == [expected] * 4


def test_a_rank_that_dies_after_it_has_answered_leaves_the_others_agreed(seen):
    saw = answers(seen, "one_dies_after")

    assert saw[2] is None
    assert saw[0] == saw[1] == saw[3] == [{"full": 512, "state": 16}, [10 << 20, 0, 27262976, 27262976], None]


def test_without_a_process_group_there_are_no_ranks():
    with pytest.raises(EngineStateError, match="call init_process_group"):
        TorchCommunicator()


@pytest.fixture
def one_process(tmp_path, monkeypatch):
    """A process group of one."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_rank_agrees_with_itself(one_process):
    ranks = TorchCommunicator()

    assert (ranks.rank, ranks.world_size, ranks.all_gather("alone", 1)) == (0, 1, ["alone"])


@pytest.mark.parametrize(
    ("call", "kind", "told"),
    [
        (lambda: TorchCommunicator("world"), TypeError, "group must be a torch.distributed process group, not 'world'"),
        (lambda: TorchCommunicator(3), TypeError, "group must be a torch.distributed process group, not 3"),
        (lambda: TorchCommunicator().all_gather(b"text", 1), TypeError, "text must be a string"),
        (lambda: TorchCommunicator().all_gather("text", "1"), TypeError, "timeout_s must be a number of seconds"),
        (lambda: TorchCommunicator().all_gather("text", 0), PlanError, "timeout_s is 0"),
    ],
)
def test_what_makes_no_sense_is_refused(one_process, call, kind, told):
    with pytest.raises(kind, match=told):
        call()


@pytest.mark.gpu
def test_two_devices_agree_through_nccl():
    if not dist.is_nccl_available() or torch.cuda.device_count() < 2:
        pytest.skip("needs NCCL and two devices")

    failing = ("one_never_comes", "one_dies_before", "all_end_with_calls_that_nobody_answers")
    seen = run_group(("all_agree", "one_has_another_model", *failing), "nccl")

    first, second = answers(seen, "all_agree")
    assert first == second
    assert first[0] == [{"full": 512, "state": 16}, [10 << 20, 0], None]
    assert all("ranks 0 and 1 disagree on layer 0" in rank["error"] for rank in seen["one_has_another_model"])
    for name in failing:
        assert seen[name][0]["missing"] == [1]
        assert seen[name][0]["seconds"] < LIMIT_S + SLACK_S
    assert [rank["end"] for rank in seen[name]] == [3, 9]


def test_a_group_without_cpu_tensors_needs_a_device(one_process, monkeypatch):
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")

    with pytest.raises(PlanError, match="serves no CPU tensors; give device="):
        TorchCommunicator()
    assert TorchCommunicator(device="cpu").rank == 0
