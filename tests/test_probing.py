from __future__ import annotations

import threading
import time

import pytest
from announcing import backend

from cachecore import DeviceSpec, StandardLayoutPolicy
from cachecore.probing import answer_within, policy_of, probe_backend, unclaimed

NULL = DeviceSpec("null")


@pytest.mark.parametrize("answer", [None, "no card", ""])
def test_an_answer_is_given_as_it_is(answer):
    assert answer_within(lambda: answer, 5) == answer


@pytest.mark.parametrize("answer", [True, False, 0, ["no"]])
def test_an_answer_of_a_wrong_type_is_a_reason(answer):
    assert answer_within(lambda: answer, 5) == f"probe returned {answer!r}; expected None or the reason why not"


@pytest.mark.parametrize("error", [OSError("no libx"), SystemExit(1), KeyboardInterrupt(), AssertionError("x")])
def test_whatever_a_probe_raises_is_a_reason(error):
    def probe():
        raise error

    assert answer_within(probe, 5) == f"probe raised {type(error).__name__}: {error}"


def test_a_probe_that_hangs_is_left_behind():
    forever = threading.Event()
    started = time.monotonic()

    reason = answer_within(forever.wait, 0.05)

    left = [thread for thread in threading.enumerate() if thread.name == "cachecore-probe"]
    assert reason == "probe did not answer within 0.05 s"
    assert time.monotonic() - started < 4
    assert left
    assert all(thread.daemon for thread in left)  # it must not keep the process alive
    forever.set()


@pytest.mark.parametrize(
    ("types", "device", "reason"),
    [
        (("cuda",), "cuda:1", None),
        (("cuda", "npu"), "npu", None),
        (("*",), "anything", None),
        (("cuda", "npu"), "cpu", "serves cuda, npu, not cpu"),
    ],
)
def test_a_device_type_is_claimed_or_not(types, device, reason):
    assert unclaimed(backend(device_types=types), DeviceSpec.parse(device)) == reason


def test_only_a_claimed_device_is_probed():
    asked = []
    info = backend(device_types=("cuda",), probe=asked.append)

    assert probe_backend(info, NULL) == "serves cuda, not null"
    assert asked == []
    assert probe_backend(info, DeviceSpec("cuda", 1)) is None
    assert asked == [DeviceSpec("cuda", 1)]


def test_a_policy_or_the_reason_why_there_is_none():
    assert isinstance(policy_of(backend()), StandardLayoutPolicy)
    assert policy_of(backend(load_policy=lambda: 3)) == "load_policy() returned 3, which is no LayoutPolicy"
    assert policy_of(backend(load_policy=lambda: 1 / 0)) == "load_policy() raised ZeroDivisionError: division by zero"
