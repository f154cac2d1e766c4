from __future__ import annotations

import pytest
from announcing import MINE, Announcing, backend, names, registry_of
from installed import BROKEN, install_good

from cachecore import (
    DeviceSpec,
    NoBackendError,
    PlanError,
    PluginError,
    PluginRegistry,
    hookimpl,
)
from cachecore.ranking import PluginRecord


def why_not(selection):
    return {record.info.name: reason for record, reason in selection.rejected}


def test_the_best_that_serves_wins_and_all_others_get_a_reason():
    registry = registry_of(
        backend("fast", priority=90, probe=lambda device: "no card"),
        backend("good", priority=50),
        backend("slow", priority=10),
        backend("other", ("cuda", "npu")),
    )

    selection = registry.select("null")

    assert (selection.chosen.info.name, selection.device) == ("good", DeviceSpec("null"))
    assert selection.reason == "priority 50, ahead of slow 10, bytes 0"
    assert names(selection.candidates) == ["good", "slow", "bytes"]
    assert why_not(selection) == {
        "fast": "no card",
        "other": "serves cuda, npu, not null",
        "slow": "priority 10, 'good' has 50",
        "bytes": "priority 0, 'good' has 50",
    }


def test_a_star_serves_any_device_type():
    selection = registry_of(backend("any", ("*",))).select("mlu:2")

    assert (selection.chosen.info.name, selection.reason) == ("any", "priority 30, the only one that serves")
    assert selection.device == DeviceSpec("mlu", 2)


def test_a_probe_gets_the_device():
    asked = []
    registry_of(backend(probe=asked.append)).select("null:3")

    assert asked == [DeviceSpec("null", 3)]


def test_a_device_that_is_not_served_is_not_probed():
    asked = []
    registry_of(backend(device_types=("cuda",), probe=asked.append)).select("null")

    assert asked == []


def test_a_tie_at_the_top_names_both_and_the_way_out():
    registry = registry_of(backend("a", priority=50), backend("b", priority=50))

    with pytest.raises(
        PluginError, match=r"backends 'a' \(dist-0\) and 'b' \(dist-1\) both serve null .* 50; say which"
    ):
        registry.select("null")


def test_a_tie_below_the_winner_is_none():
    registry = registry_of(backend("a", priority=50), backend("b"), backend("c"))

    assert registry.select("null").chosen.info.name == "a"


def test_what_is_no_device_is_refused():
    with pytest.raises(PlanError, match=r"device 'NULL' is not understood"):
        PluginRegistry(environ={}).select("NULL")


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_a_forced_backend_wins_over_priority(way):
    registry = registry_of(
        backend("fast", priority=90),
        backend("slow", priority=10),
        environ={"CACHECORE_BACKEND": "slow"} if way == "environment" else {},
    )

    selection = registry.select("null", backend="slow" if way == "argument" else None)

    assert (selection.chosen.info.name, selection.reason) == ("slow", "forced as 'slow'")
    assert why_not(selection)["fast"] == "backend 'slow' is forced"


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_a_blank_variable_forces_nothing(blank):
    registry = registry_of(backend("fast", priority=90), environ={"CACHECORE_BACKEND": blank})

    assert registry.select("null").reason == "priority 90, ahead of bytes 0"
    assert registry.plan_backend("null").info.name == "fast"


def test_stray_spaces_around_a_forced_name_are_not_counted():
    registry = registry_of(
        backend("slow"), backend("fast", priority=90), environ={"CACHECORE_BACKEND": " slow @ dist-0 "}
    )

    assert registry.select("null").reason == "forced as 'slow@dist-0'"
    assert registry.plan_backend("null").info.name == "slow"


def test_the_argument_goes_before_the_environment():
    registry = registry_of(backend("a"), backend("b"), environ={"CACHECORE_BACKEND": "a"})

    assert registry.select("null", backend="b").chosen.info.name == "b"


def test_a_forced_backend_that_cannot_serve_is_an_error_and_no_fallback():
    registry = registry_of(backend("fast", probe=lambda device: "no card"), backend("slow"))

    with pytest.raises(
        NoBackendError, match=r"backend 'fast', which is forced, does not serve null: fast \(dist-0\): no c"
    ):
        registry.select("null", backend="fast")


def test_a_forced_backend_of_another_device_is_an_error():
    with pytest.raises(
        NoBackendError, match=r"'cpu-only', which is forced, does not serve cuda:0: .* serves cpu, not cuda"
    ):
        registry_of(backend("cpu-only", ("cpu",))).select("cuda:0", backend="cpu-only")


def test_a_forced_backend_that_does_not_exist_names_the_ones_that_do():
    with pytest.raises(
        NoBackendError, match=r"there is no backend 'fats', .*; installed are bytes, fast; did you mean 'fast'\? `cach"
    ) as caught:
        registry_of(backend("fast")).select("null", backend="fats")

    assert caught.value.device == "null"


def test_a_name_claimed_twice_serves_only_when_forced_by_distribution():
    registry = registry_of(backend("twin", priority=90), backend("twin", priority=90), backend("good", priority=5))

    selection = registry.select("null")
    forced = registry.select("null", backend="twin@dist-1")

    assert selection.chosen.info.name == "good"
    assert why_not(selection)["twin"] == "name 'twin' is claimed by dist-0 and dist-1; force one as name@distribution"
    assert forced.chosen.plugin.distribution == "dist-1"
    with pytest.raises(
        NoBackendError, match=r"name 'twin' is claimed by dist-0 and dist-1; force one as name@distribution"
    ):
        registry.select("null", backend="twin")


def test_two_plugins_of_one_distribution_cannot_be_told_apart():
    registry = PluginRegistry(environ={})
    for name in ("p0", "p1"):
        registry.register(Announcing([backend("twin")]), PluginRecord(name, "dist", "1"))

    with pytest.raises(PluginError, match=r"'twin@dist' names 2 backends of one distribution"):
        registry.select("null", backend="twin@dist")


class Choosing:
    """A host application that answers ``choice``."""

    def __init__(self, choice):
        self.choice = choice
        self.asked = []

    @hookimpl
    def cachecore_choose_backend(self, device, candidates):
        self.asked.append((device, [info.name for info in candidates]))
        if isinstance(self.choice, BaseException):
            raise self.choice
        return self.choice


def choosing(choice, **more):
    registry = registry_of(backend("fast", priority=90), backend("slow", priority=10), **more)
    application = Choosing(choice)
    registry.register(application, MINE)
    return registry, application


def test_the_application_may_overrule_the_ranking():
    registry, application = choosing("slow")

    selection = registry.select("null:1")

    assert selection.chosen.info.name == "slow"
    assert selection.reason == "chosen by the application's cachecore_choose_backend"
    assert application.asked == [("null:1", ["fast", "slow", "bytes"])]


def test_no_opinion_leaves_the_ranking():
    registry, _ = choosing(None)

    assert registry.select("null").chosen.info.name == "fast"


def test_an_opinion_settles_a_tie():
    registry, _ = choosing("twin-2")
    for name in ("twin-1", "twin-2"):
        registry.register(Announcing([backend(name, priority=99)]), PluginRecord(name, "dist", "1"))

    assert registry.select("null").chosen.info.name == "twin-2"


def test_a_forced_backend_is_not_discussed():
    registry, application = choosing("slow", environ={"CACHECORE_BACKEND": "fast"})

    assert registry.select("null").chosen.info.name == "fast"
    assert application.asked == []


@pytest.mark.parametrize("choice", ["fats", 3, backend("slow")], ids=["unknown", "number", "record"])
def test_an_opinion_that_names_no_candidate_is_refused(choice):
    registry, _ = choosing(choice)

    with pytest.raises(
        PluginError, match=r"cachecore_choose_backend returned .* for null; expected None or one of fast, slow"
    ):
        registry.select("null")


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), SystemExit("mine"), GeneratorExit("mine")])
def test_an_application_that_raises_is_named(error):
    registry, _ = choosing(error)

    with pytest.raises(PluginError, match=rf"cachecore_choose_backend raised {type(error).__name__}: mine"):
        registry.select("null")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("probe_raises", "probe raised OSError: libvendor.so: cannot open shared object file (probing null)"),
        ("probe_hangs", "probe did not answer within 0.2 s"),
    ],
)
def test_a_broken_probe_excludes_its_backend_alone(fault, reason, on_path, tmp_path):
    entry = f"broken-{fault.replace('_', '-')}"
    on_path(BROKEN / fault, install_good(tmp_path, "plugin_good", priority=1))
    registry = PluginRegistry(environ={"CACHECORE_PLUGINS": f"{entry},plugin_good"}, probe_limit_s=0.2)
    registry.load_entry_points()

    selection = registry.select("null")

    assert selection.chosen.info.name == "plugin_good"
    assert why_not(selection)[fault.replace("_", "-")] == reason


def test_two_distributions_of_one_backend_name_are_both_refused(on_path):
    on_path(BROKEN / "duplicate_name")
    registry = PluginRegistry(environ={"CACHECORE_PLUGINS": "broken-duplicate-name-a,broken-duplicate-name-b"})
    registry.load_entry_points()
    a, b = (f"cachecore-broken-duplicate-name-{one}" for one in "ab")

    assert registry.failures == []
    assert registry.select("null").chosen.info.name == "bytes"
    assert registry.select("null", backend=f"twin@{b}").chosen.plugin.distribution == b
    assert registry.plan_backend("null", backend=f"twin@{a}").plugin.distribution == a
