from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace

import pytest
from announcing import backend, block_copy
from installed import install

from cachecore import (
    AllocationError,
    ByteBackend,
    CopySide,
    DeviceSpec,
    PluginError,
    StandardLayoutPolicy,
    probing,
)
from cachecore.probing import (
    answer_within,
    capabilities_of,
    load_backend,
    policy_of,
    probe_backend,
    probe_copy,
    unclaimed,
)

NULL = DeviceSpec("null")
SIDE = CopySide("bytes", "null", NULL, None)


class MuteError(Exception):
    """Cannot be shown at all."""

    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __str__


class Mute:
    def __repr__(self):
        raise SystemExit("no words")


@pytest.mark.parametrize("answer", [None, "no card"])
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


@pytest.mark.parametrize("answer", ["", "  "])
def test_an_empty_reason_is_told_as_such(answer):
    assert answer_within(lambda: answer, 5) == f"probe gave no reason: it returned {answer!r}"
    assert "gave no reason" in probe_backend(backend(probe=lambda device: answer), NULL)


@pytest.mark.parametrize("raising", [True, False], ids=["raises", "returns"])
def test_what_cannot_say_what_it_is_is_told_by_its_type(raising, recwarn):
    def probe():
        if raising:
            raise MuteError
        return Mute()

    reason = answer_within(probe, 5)  # a traceback of the thread would be a warning of pytest's

    assert reason in (
        "probe raised MuteError, which cannot say what it is",
        "probe returned <Mute, whose repr() raised SystemExit>; expected None or the reason why not",
    )
    assert not recwarn.list


def hanging(asked):
    """A probe that waits until ``forever`` is set, and tells how often it was asked."""
    forever = threading.Event()

    def probe(*_):
        asked.append(1)
        forever.wait()

    return probe, forever


def test_a_hang_is_remembered_while_it_lasts():
    asked = []
    probe, forever = hanging(asked)
    info = backend(device_types=("*",), probe=probe)

    first, second = (probe_backend(info, NULL, 0.05) for _ in range(2))

    assert first == "probe did not answer within 0.05 s"
    assert second == "probe did not answer when it was asked before, and still hangs"
    assert len(asked) == 1
    assert probe_backend(info, DeviceSpec("npu"), 0.05) == first  # another device may answer
    forever.set()
    for thread in [thread for thread in threading.enumerate() if thread.name == "cachecore-probe"]:
        thread.join()
    assert probe_backend(info, NULL, 5) is None


def test_a_copy_that_hangs_is_asked_once_for_all_pairs():
    asked = []
    probe, forever = hanging(asked)
    info = block_copy(probe=probe, probe_limit_s=0.05)

    reasons = [
        probe_copy(one, *pair) for one in (info, replace(info, priority=3)) for pair in ((SIDE, SIDE), (SIDE, None))
    ]
    forever.set()

    assert reasons == [
        "probe did not answer within 0.05 s",
        *["probe did not answer when it was asked before, and still hangs"] * 3,
    ]
    assert len(asked) == 1


def test_a_copy_without_a_limit_of_its_own_has_the_usual_one(monkeypatch):
    monkeypatch.setattr(probing, "PROBE_LIMIT_S", 0.05)
    probe, forever = hanging([])

    reason = probe_copy(block_copy(probe=probe), SIDE, SIDE)
    forever.set()

    assert reason == "probe did not answer within 0.05 s"


@pytest.fixture
def slow_module(on_path, tmp_path):
    """A module whose import waits until ``forever`` is set, longer than the limits of these tests."""
    name = "a_slow_library"
    on_path(install(tmp_path, name, "import threading\nforever = threading.Event()\nforever.wait(WAIT)\n"))
    yield name, tmp_path / f"{name}.py"
    sys.modules.pop(name, None)


def importing(slow_module, wait):
    name, path = slow_module
    path.write_text(path.read_text().replace("WAIT", str(wait)))

    def probe():
        __import__(name)
        return "imported"

    return probe


def test_what_a_probe_spends_on_imports_is_counted_apart(slow_module):
    # the import takes four times the limit; without a clock of its own the probe would be excluded
    assert answer_within(importing(slow_module, 0.8), 0.2) == "imported"


def test_imports_have_a_limit_too(slow_module, monkeypatch):
    monkeypatch.setattr(probing, "IMPORT_LIMITS", 3)

    reason = answer_within(importing(slow_module, None), 0.1)

    assert reason == "probe did not answer: its imports took more than 0.3 s"
    sys.modules["a_slow_library"].forever.set()


def test_a_wait_after_an_import_is_a_wait(slow_module):
    imported, forever = importing(slow_module, 0.3), threading.Event()

    def probe():
        imported()
        forever.wait()

    assert answer_within(probe, 0.2) == "probe did not answer within 0.2 s"
    forever.set()


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
    assert policy_of(backend(load_policy=Mute)) == (
        "load_policy() returned <Mute, whose repr() raised SystemExit>, which is no LayoutPolicy"
    )


@pytest.mark.parametrize("error", [SystemExit(2), GeneratorExit("x"), MemoryError("x")])
def test_whatever_load_policy_raises_is_a_reason(error):
    def load_policy():
        raise error

    assert policy_of(backend(load_policy=load_policy)) == f"load_policy() raised {type(error).__name__}: {error}"


def test_ctrl_c_while_a_policy_loads_is_heard():
    def load_policy():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy_of(backend(load_policy=load_policy))


@pytest.mark.parametrize("version", [None, "", 1])
def test_a_policy_must_say_which_it_is(version):
    class Nameless(StandardLayoutPolicy):
        name = "mine"

    if version is not None:
        Nameless.version = version
    else:
        Nameless.version = property(lambda policy: {}["version"])

    reason = policy_of(backend(load_policy=Nameless))

    assert reason == (
        "load_policy() raised KeyError: 'version'"
        if version is None
        else f"load_policy() returned a policy whose version is {version!r}; expected a non-empty string"
    )


def test_a_backend_is_loaded():
    assert isinstance(load_backend(backend(), "backend 'vendor'"), ByteBackend)


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (None, "load() returned None, which is no CacheBackend"),
        (ByteBackend, "load() returned <class 'cachecore.reference.ByteBackend'>, which is no CacheBackend"),
        (Mute(), "load() returned <Mute, whose repr() raised SystemExit>, which is no CacheBackend"),
        (
            type("Nameless", (ByteBackend,), {"name": None})(),
            "load() returned a backend whose name is None; expected a non-empty string",
        ),
        (
            type("Aimless", (ByteBackend,), {"policy": property(lambda self: 3, lambda self, policy: None)})(),
            "load() returned a backend whose policy is 3; expected a LayoutPolicy",
        ),
        (
            type("Raising", (ByteBackend,), {"policy": property(lambda self: {}["x"], lambda self, policy: None)})(),
            "policy raised KeyError: 'x'",
        ),
    ],
)
def test_what_loads_as_no_backend_is_told(loaded, message):
    with pytest.raises(PluginError) as caught:
        load_backend(backend(load=lambda: loaded), "backend 'vendor'")

    assert str(caught.value) == f"backend 'vendor': {message}"


@pytest.mark.parametrize("error", [SystemExit(2), RuntimeError("no driver"), AllocationError("full")])
def test_a_backend_that_cannot_be_loaded_names_its_plugin(error):
    def load():
        raise error

    ours = isinstance(error, AllocationError)
    with pytest.raises(AllocationError if ours else PluginError) as caught:
        load_backend(backend(load=load), "backend 'vendor'")

    name = type(error).__name__
    assert str(caught.value) == (str(error) if ours else f"backend 'vendor': load() raised {name}: {error}")


@pytest.mark.parametrize(
    ("told", "message"),
    [
        (lambda self: None, r"backend 'bytes': capabilities\(\) returned None; expected a mapping"),
        (lambda self: {}["x"], r"backend 'bytes': capabilities\(\) raised KeyError: 'x'"),
    ],
)
def test_capabilities_are_a_mapping(told, message):
    assert capabilities_of(ByteBackend())["byte_addressable"] is None
    with pytest.raises(PluginError, match=message):
        capabilities_of(type("Broken", (ByteBackend,), {"capabilities": told})())
