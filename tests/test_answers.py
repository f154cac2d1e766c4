"""Backends and copies that break their contract are named, and end nothing."""

from __future__ import annotations

import pytest
from samples import COUNTS, HOST_COUNTS, kv_plan, open_bytes, three_groups

from cachecore import BlockCacheCopy, BlockCopyInfo, ByteBackend, CacheBackend, PlanError, PluginError
from cachecore.answers import check_completion, survived
from cachecore.reference import BYTE_COPY
from cachecore.transfer import ByteCopy


class Unruly(ByteBackend):
    """Gives one wrong answer, or raises it."""

    def __init__(self, method, answer):
        super().__init__()
        self._method, self._answer = method, answer

    def __getattribute__(self, name):
        if name != object.__getattribute__(self, "__dict__").get("_method"):
            return super().__getattribute__(name)
        answer = self._answer

        def method(*given, **more):
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return method


WRONG = [
    ("allocate", None, "allocate() returned None; expected a CacheAllocation"),
    ("allocate", b"bytes", "allocate() returned b'bytes'; expected a CacheAllocation"),
    ("memory", None, "memory() of null returned None; expected a MemoryInfo of two integers"),
    ("memory", (1, 2), "memory() of null returned (1, 2); expected a MemoryInfo"),
    ("row_view", None, "row_view() of cache 'k_cache' returned None for row 0; expected its tensor"),
    ("serves_layout", True, "serves_layout() returned True; expected None or the reason why not"),
]


@pytest.mark.parametrize(("method", "answer", "message"), WRONG)
def test_a_wrong_answer_is_a_plugin_error_that_names_the_backend(method, answer, message):
    backend = Unruly(method, answer)

    with pytest.raises(PluginError) as caught:
        open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    assert str(caught.value).startswith(f"backend 'bytes': {message}")
    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("answer", [None, ["pinned_host"], {"pinned_host": True}])
def test_capabilities_that_are_none_are_told(answer):
    backend = Unruly("capabilities", answer)

    with pytest.raises(PluginError, match=r"backend 'bytes': capabilities\(\)"):
        open_bytes(kv_plan(), 4, 2, backend=backend)

    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("raised", [SystemExit(3), ValueError("no luck"), AttributeError("x")], ids=type)
@pytest.mark.parametrize("method", ["allocate", "memory", "capabilities", "view", "row_view", "serves_layout"])
def test_whatever_it_raises_is_a_plugin_error(method, raised):
    backend = Unruly(method, raised)

    with pytest.raises(PluginError, match=rf"backend 'bytes': {method}\(\).* raised {type(raised).__name__}") as caught:
        open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    assert caught.value.__cause__ is raised
    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("method", ["allocate", "memory", "capabilities", "view", "row_view", "serves_layout"])
@pytest.mark.parametrize("raised", [PlanError("mine"), KeyboardInterrupt()], ids=type)
def test_its_own_words_and_interrupts_pass(method, raised):
    backend = Unruly(method, raised)

    with pytest.raises(type(raised)) as caught:
        open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    assert caught.value is raised
    assert backend.taken_nbytes == 0


@pytest.mark.parametrize(("num_entries", "freed"), [(3, False), (4, True)])
def test_an_allocation_of_another_size_or_freed_is_refused(num_entries, freed):
    class Short(ByteBackend):
        def allocate(self, layout, _, device, *, pinned=False):
            found = super().allocate(layout, num_entries, device)
            found.freed = freed
            return found

    with pytest.raises(PluginError, match=r"allocate\(\) returned an allocation .* entries and \d pools; expected 4"):
        open_bytes(kv_plan(), backend=Short())


def test_a_backend_needs_a_name():
    class Nameless(ByteBackend):
        @property
        def name(self):
            raise AttributeError("name")

    assert issubclass(Nameless, CacheBackend)
    with pytest.raises(PluginError, match="a backend of type Nameless has no name"):
        open_bytes(kv_plan(), backend=Nameless())


@pytest.mark.parametrize("answer", [None, True, "done"])
def test_zero_without_a_completion_is_told(answer):
    backend = ByteBackend()
    engine = open_bytes(kv_plan(), backend=backend)
    backend.zero = lambda *given: answer

    with pytest.raises(PluginError, match=rf"backend 'bytes': zero\(\) returned {answer!r}, which has no wait\(\), "):
        engine.zero_blocks([0])


def test_zero_that_ends_the_application_does_not():
    backend = ByteBackend()
    engine = open_bytes(kv_plan(), backend=backend)

    def zero(*given):
        raise SystemExit("bye")

    backend.zero = zero

    with pytest.raises(PluginError, match=r"backend 'bytes': zero\(\) raised SystemExit: bye"):
        engine.zero_blocks([0])


class Answering(ByteCopy):
    answer = None

    def __call__(self, pairs, after=()):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def on_device(self, ids):
        self(ids)


def engine_with(answer):
    kind = type("Copy", (Answering,), {"answer": answer})
    assert issubclass(kind, BlockCacheCopy)
    return open_bytes(kv_plan(), 4, 2, copies=[BlockCopyInfo("mine", 1, lambda src, dst: None, kind)])


USES = {
    "copy": lambda engine: engine.copy_blocks([(0, 1)]),
    "swap_out": lambda engine: engine.swap_out([(0, 1)]),
    "swap_in": lambda engine: engine.swap_in([(0, 1)]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("answer", [None, 0, [1]])
def test_a_copy_without_a_completion_is_told_and_not_counted(use, answer):
    engine = engine_with(answer)

    with pytest.raises(PluginError) as caught:
        use(engine)

    assert f"block copy 'mine' returned {answer!r}, which has no wait(), synchronize(), done()" in str(caught.value)
    assert [copy.num_calls for copy in engine.stats().groups[0].copies] == [0, 0, 0]


@pytest.mark.parametrize("use", [*USES.values(), lambda engine: engine.copy_blocks_on_device(None)])
def test_a_copy_that_ends_the_application_does_not(use):
    with pytest.raises(PluginError, match="block copy 'mine' raised SystemExit: 7"):
        use(engine_with(SystemExit(7)))


@pytest.mark.parametrize("error", [ValueError("of the caller"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_errors_of_a_copy_pass_as_they_are(use, error):
    # ids of a wrong device are the caller's fault, a lost device is nobody's
    with pytest.raises(type(error)) as caught:
        use(engine_with(error))

    assert caught.value is error


def test_a_half_completion_says_what_it_lacks():
    class Half:
        def wait(self, stream=None):
            return None

        done = False

    with pytest.raises(PluginError, match=r"has no synchronize\(\), done\(\); expected a Completion"):
        check_completion(Half(), "block copy 'half'")


def test_survived_gives_the_answer():
    assert survived("mine", lambda: 3) == 3


def test_the_copies_of_the_core_keep_the_contract():
    engine = open_bytes(kv_plan(), 4, 2, copies=[BYTE_COPY])

    for use in USES.values():
        assert use(engine).done()
