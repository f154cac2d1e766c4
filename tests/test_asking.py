from __future__ import annotations

import asyncio

import pytest

from cachecore import AllocationError, PluginError
from cachecore.asking import asked, shown, told


class MuteError(Exception):
    """Cannot be shown at all."""

    def __str__(self):
        raise SystemExit("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [OSError("no libx"), SystemExit(3), GeneratorExit("x"), asyncio.CancelledError("x"), MemoryError("x")]
)
def test_whatever_a_plugin_raises_is_a_plugin_error(error):
    def call():
        raise error

    with pytest.raises(PluginError) as caught:
        asked("backend 'x' of dist-x: load()", call)

    assert str(caught.value) == f"backend 'x' of dist-x: load() raised {type(error).__name__}: {error}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [AllocationError("full", pool=3), KeyboardInterrupt()])
def test_errors_of_our_own_and_ctrl_c_pass_unchanged(error):
    def call():
        raise error

    with pytest.raises(type(error)) as caught:
        asked("backend 'x'", call)

    assert caught.value is error
    assert caught.value.__cause__ is None


def test_an_answer_is_given_as_it_is():
    answer = object()

    assert asked("backend 'x'", lambda: answer) is answer


def test_an_error_is_told_with_its_cause():
    plain, caused = OSError("no libx"), ImportError("vendor")
    caused.__cause__ = plain

    assert told(plain) == "OSError: no libx"
    assert told(caused) == "ImportError: vendor (from OSError: no libx)"


def test_a_cause_that_an_error_names_is_told_once():
    named = PluginError("load() raised OSError: no libx")
    named.__cause__ = OSError("no libx")

    assert told(named) == "PluginError: load() raised OSError: no libx"


def test_an_error_without_words_is_told_by_its_type():
    caused = OSError("no libx")
    caused.__cause__ = MuteError()

    assert told(MuteError()) == "MuteError: <MuteError, whose str() raised SystemExit>"
    assert told(caused) == "OSError: no libx (from MuteError: <MuteError, whose str() raised SystemExit>)"


def test_an_object_without_words_is_shown_by_its_type():
    assert shown([1]) == "[1]"
    assert shown(MuteError()) == "<MuteError, whose repr() raised SystemExit>"


def test_ctrl_c_while_an_object_is_shown_is_heard():
    class Slow:
        def __repr__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown(Slow())
