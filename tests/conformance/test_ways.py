"""Whose copies the kit checks: the plugin's own, whatever better-ranked copy is installed beside it."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from conformance.mutant import WrongCopy
from installed import install

from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, StandardLayoutPolicy, hookimpl
from cachecore.cli import main
from cachecore.errors import PluginError
from cachecore.ranking import CopyRecord, PluginRecord
from cachecore.registry import PluginRegistry
from cachecore.testing import find_subject, run_checks, run_trial, select_trials
from cachecore.testing.command import _exit_code
from cachecore.testing.results import FAIL, PASS, report, text
from cachecore.testing.ways import own_first
from cachecore.transfer import ByteCopy

MINE = PluginRecord("mine", "cachecore-mine", "1")
GOOD = PluginRecord("good", "cachecore-good", "2")


class MineBackend(ByteBackend):
    name = "mine"


class ForgetsTheLastByte(WrongCopy):
    path = "mine:words"

    def run(self, number, index, one, page, at, to):
        self.write(one, to, self.read(one, at, one.nbytes)[:-1])


class GoodCopy(ByteCopy):
    path = "good:bytes"


def announcing(*, backends=(), copies=()):
    """A plugin with these records."""
    return SimpleNamespace(
        cachecore_register_backends=hookimpl(lambda: list(backends)),
        cachecore_register_block_copies=hookimpl(lambda: list(copies)),
    )


def copy_info(name, priority, copy, probe=lambda src, dst: None):
    return BlockCopyInfo(name, priority, probe, copy)


def subject_beside(*others, own=()):
    """Backend ``mine`` with its own copies, and the copies of another distribution beside it."""
    info = BackendInfo("mine", ("null",), 50, lambda device: None, StandardLayoutPolicy, MineBackend)
    registry = PluginRegistry(environ={})
    registry.register(announcing(backends=[info], copies=own), MINE)
    registry.register(announcing(copies=others), GOOD)
    return find_subject(registry, "mine")


def statuses(outcomes):
    return {outcome.status for outcome in outcomes}


@pytest.mark.parametrize("level", ["copy", "swap"])
def test_a_wrong_copy_fails_beside_a_better_ranked_right_one(level):
    good, wrong = copy_info("good", 100, GoodCopy), copy_info("mine", 50, ForgetsTheLastByte)

    assert FAIL in statuses(run_checks(subject_beside(good, own=[wrong]), levels=(level,)))
    assert statuses(run_checks(subject_beside(good), levels=(level,))) == {PASS}  # it is the copy that fails


def test_what_would_go_first_in_production_is_told_and_is_no_failure():
    subject = subject_beside(copy_info("good", 100, GoodCopy), own=[copy_info("mine", 50, ByteCopy)])

    data = report(subject, run_checks(subject, levels=("copy", "swap")), 0)

    assert data["status"] == PASS
    ways = {way["direction"]: (way["record"], way["distribution"], way["paths"]) for way in data["ways"]}
    assert ways == dict.fromkeys(
        ("copy", "between_layouts", "swap_out", "swap_in"), ("mine", "cachecore-mine", ["bytes"])
    )
    by = {"record": "good", "distribution": "cachecore-good", "priority": 100}
    assert data["outranked"] == [
        {"direction": direction, "record": "mine", "by": [by]} for direction in ("copy", "swap_out", "swap_in")
    ]
    lines = text(data)
    assert "  swap out by mine of cachecore-mine, priority 50: bytes" in lines
    assert (
        "note: where an engine chooses among what is installed here, good of cachecore-good, priority 100, goes before "
        "mine of cachecore-mine, priority 50 (copy, swap out, swap in)"
    ) in lines


def test_one_of_the_same_priority_is_told():
    subject = subject_beside(copy_info("good", 50, GoodCopy), own=[copy_info("mine", 50, ByteCopy)])

    run_checks(subject, levels=("swap",))

    (note,) = subject.ways.notes()
    assert "good of cachecore-good, priority 50, ties with mine of cachecore-mine, priority 50" in note


@pytest.mark.parametrize(
    "other",
    [copy_info("good", 40, GoodCopy), copy_info("good", 100, GoodCopy, lambda src, dst: "not here")],
    ids=["lower", "serves-nothing"],
)
def test_one_that_an_engine_would_not_take_is_not_told(other):
    subject = subject_beside(other, own=[copy_info("mine", 50, ByteCopy)])

    run_checks(subject, levels=("copy", "swap"))

    assert subject.ways.notes() == []


def test_without_a_copy_of_its_own_it_is_said_whose_was_taken():
    subject = subject_beside(copy_info("good", 100, GoodCopy), copy_info("slow", 1, ByteCopy))

    lines = text(report(subject, run_checks(subject, levels=("copy",)), 0))

    assert "  copy by good of cachecore-good, priority 100: good:bytes" in lines
    assert not [line for line in lines if line.startswith("note")]


def test_whose_copy_failed_is_said_too():
    subject = subject_beside(own=[copy_info("mine", 50, ForgetsTheLastByte)])
    trial = next(one for one in select_trials(("copy",)) if one.id == "copy/many-pairs[rows-132]")

    lines = text(report(subject, [run_trial(subject, trial)], 0))

    assert "FAIL copy/many-pairs[rows-132]" in lines
    assert "  copy by mine of cachecore-mine, priority 50: mine:words" in lines


def test_two_of_its_own_with_one_priority_still_tie():
    own = [copy_info("one", 50, ByteCopy), copy_info("two", 50, ByteCopy)]

    outcomes = run_checks(subject_beside(copy_info("good", 100, GoodCopy), own=own), levels=("swap",))

    assert {FAIL} == statuses(outcomes)
    assert "block copies 'one' and 'two' both serve null to null with priority 50" in outcomes[0].told


def test_copies_of_a_plugin_that_is_no_backend_are_checked_when_named():
    info = BackendInfo("mine", ("null",), 50, lambda device: None, StandardLayoutPolicy, MineBackend)
    registry = PluginRegistry(environ={})
    registry.register(announcing(backends=[info], copies=[copy_info("mine", 50, ByteCopy)]), MINE)
    registry.register(announcing(copies=[copy_info("wrong", 10, ForgetsTheLastByte)]), GOOD)

    usual, named = (find_subject(registry, "mine", copies=copies) for copies in (None, "cachecore-good"))

    assert statuses(run_checks(usual, levels=("copy",))) == {PASS}
    assert FAIL in statuses(run_checks(named, levels=("copy",)))
    assert [one.info.name for one in named.ways.records] == ["wrong", "mine", "bytes"]
    with pytest.raises(PluginError, match="no block copy comes from 'x'; they come from the distributions cachecore-g"):
        find_subject(registry, "mine", copies="x")


def test_named_copies_that_served_nothing_were_not_checked(capsys):
    def named(copies, levels):
        info = BackendInfo("mine", ("null",), 50, lambda device: None, StandardLayoutPolicy, MineBackend)
        registry = PluginRegistry(environ={})
        registry.register(announcing(backends=[info], copies=[copy_info("mine", 50, ByteCopy)]), MINE)
        registry.register(announcing(copies=[copy_info("never", 90, GoodCopy, lambda src, dst: "never")]), GOOD)
        subject = find_subject(registry, "mine", copies=copies)
        return _exit_code(subject, run_checks(subject, levels=levels), copies)

    assert named("cachecore-good", ("copy",)) == 2
    assert "no block copy of cachecore-good serves mine on null, so none was checked" in capsys.readouterr().err
    assert named("cachecore-good", ("layout",)) == 0
    assert named("cachecore-mine", ("copy",)) == 0
    assert named(None, ("copy",)) == 0


def test_a_distribution_without_copies_is_refused(capsys):
    assert main(["check", "bytes", "--copies", "nobody"]) == 2
    assert "no block copy comes from 'nobody'" in capsys.readouterr().err


def requiring(folder, name, *requires):
    install(folder, name, "")
    with (folder / f"{name}-1.0.dist-info" / "METADATA").open("a", encoding="utf-8") as metadata:
        metadata.writelines(f"Requires-Dist: {line}\n" for line in requires)


def test_those_it_builds_on_come_before_the_others(tmp_path, monkeypatch):
    requiring(tmp_path, "ways_mine", "Ways.Middle[x]>=1", "ways-extra; extra == 'testing'", "ways-absent")
    requiring(tmp_path, "ways_middle", "ways-base>=0.1; python_version >= '3.11'", "ways-mine")
    monkeypatch.syspath_prepend(str(tmp_path))
    priorities = {"ways-extra": 100, "ways-mine": 50, "ways-middle": 60, "ways-base": 10, "else": 20}
    records = [
        CopyRecord(copy_info(name, priority, ByteCopy), PluginRecord(name, name, "1.0"))
        for name, priority in priorities.items()
    ]

    found, infos = own_first(records, records[1].plugin)

    assert [(one.info.name, one.info.priority) for one in found] == [
        ("ways-mine", 50),
        ("ways-middle", 60),
        ("ways-base", 10),
        ("ways-extra", 100),
        ("else", 20),
    ]
    # middle goes to 49, base keeps its 50 less than that; extra goes to one less than base, else keeps its 80 less
    assert [info.priority for info in infos] == [50, 49, -1, -2, -82]


def test_ranks_that_are_right_already_are_left_alone():
    records = [
        CopyRecord(copy_info("mine", 50, ByteCopy), MINE),
        CopyRecord(copy_info("good", 10, ByteCopy), GOOD),
        CopyRecord(copy_info("also", 10, ByteCopy), GOOD),
    ]

    assert [info.priority for info in own_first(records, MINE)[1]] == [50, 10, 10]
    assert [info.priority for info in own_first(records, MINE, "cachecore-mine")[1]] == [50, 10, 10]


PLUGIN = """
    from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, StandardLayoutPolicy, hookimpl
    from cachecore.transfer import ByteCopy

    class Backend(ByteBackend):
        name = "ways_toy"

    class Copy(ByteCopy):
        def __init__(self, context):
            {}["planted"]

    @hookimpl
    def cachecore_register_backends():
        return [BackendInfo("ways_toy", ("null",), 50, lambda device: None, StandardLayoutPolicy, Backend)]

    @hookimpl
    def cachecore_register_block_copies():
        return [BlockCopyInfo("toy", 50, lambda src, dst: None, Copy)]
"""


def test_an_error_in_a_copy_is_located_in_the_plugin(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(install(tmp_path, "ways_toy", PLUGIN)))
    monkeypatch.delitem(sys.modules, "ways_toy", raising=False)

    code = main(["check", "ways_toy", "--level", "copy", "--json"])

    (level,) = json.loads(capsys.readouterr().out)["levels"]
    line = 1 + next(at for at, text in enumerate(PLUGIN.splitlines()) if "planted" in text)
    assert code == 1
    (told,) = {check["told"] for check in level["checks"]}
    assert told == (
        "unexpected PluginError: block copy 'toy': build() raised KeyError: 'planted', raised in __init__() at "
        f"{tmp_path / 'ways_toy.py'}:{line}"
    )
