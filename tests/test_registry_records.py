from __future__ import annotations

import pytest
from announcing import MINE, Announcing, backend, block_copy, names

from cachecore import AllocationError, PluginError, PluginRegistry, StandardLayoutPolicy, hookimpl
from cachecore.ranking import PluginRecord


def test_a_registered_plugin_is_kept_with_its_origin():
    registry = PluginRegistry(environ={})

    registry.register(Announcing([backend()], (block_copy() for _ in range(1))), MINE)

    assert (names(registry.backends), names(registry.copies)) == (["bytes", "vendor"], ["bytes", "fast"])
    assert registry.backends[1].plugin == MINE


class Mute:
    """Cannot be shown."""

    def __repr__(self):
        raise SystemExit("no words")


BAD_RECORDS = {
    "none": (None, "cachecore_register_backends() returned None; expected a sequence of BackendInfo"),
    "one": (backend(), "expected a sequence of BackendInfo"),
    "text": ("vendor", "returned 'vendor'; expected a sequence of BackendInfo"),
    "number": (3, "returned 3; expected a sequence of BackendInfo"),
    "copies": ([block_copy()], "expected a sequence of BackendInfo"),
    "no name": ([backend("")], "BackendInfo has name ''; expected a non-empty string"),
    "name": ([backend(3)], "BackendInfo has name 3"),
    "old api": ([backend(api_version=0)], "'vendor' speaks plugin API 0, this cachecore 1"),
    "api": ([backend(api_version="1")], "speaks plugin API '1'"),
    "api flag": ([backend(api_version=True)], "speaks plugin API True"),
    "priority": ([backend(priority=1.5)], "'vendor' has priority 1.5; expected an integer"),
    "priority flag": ([backend(priority=True)], "has priority True"),
    "types text": ([backend(device_types="cuda")], "has device_types 'cuda'; expected a tuple of strings"),
    "no types": ([backend(device_types=())], "has device_types (); expected a tuple of strings"),
    "types": ([backend(device_types=("cuda", 3))], "has device_types ('cuda', 3)"),
    "probe": ([backend(probe=None)], "'vendor': probe is None; expected a callable"),
    "load": ([backend(load="x")], "'vendor': load is 'x'; expected a callable"),
    "load_policy": ([backend(load_policy=StandardLayoutPolicy())], "load_policy is"),
    "mute name": ([backend(Mute())], "BackendInfo has name <Mute, whose repr() raised SystemExit>"),
    "mute api": ([backend(api_version=Mute())], "speaks plugin API <Mute, whose repr() raised SystemExit>"),
    "mute priority": ([backend(priority=Mute())], "has priority <Mute, whose repr() raised SystemExit>"),
    "mute types": ([backend(device_types=(Mute(),))], "has device_types <tuple, whose repr() raised SystemExit>"),
    "mute load": ([backend(load=Mute())], "load is <Mute, whose repr() raised SystemExit>; expected a callable"),
    "mute": ([Mute()], "returned <list, whose repr() raised SystemExit>; expected a sequence of BackendInfo"),
    "twice": ([backend(), backend()], "'vendor' is announced twice; give every record a name of its own"),
}


@pytest.mark.parametrize(("returned", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS)
def test_a_wrong_record_is_refused_and_leaves_no_trace(returned, message):
    registry = PluginRegistry(environ={})
    bad = Announcing(returned, [block_copy()])

    with pytest.raises(PluginError) as caught:
        registry.register(bad, MINE)

    assert str(caught.value).startswith("plugin 'mine' of cachecore-mine: ")
    assert message in str(caught.value)
    assert (names(registry.backends), names(registry.copies), registry.plugins) == (["bytes"], ["bytes"], [])
    registry.register(Announcing([backend()]), MINE)
    assert names(registry.backends) == ["bytes", "vendor"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([block_copy(build=3)], "BlockCopyInfo 'fast': build is 3; expected a callable"),
        ([block_copy(priority="high")], "BlockCopyInfo 'fast' has priority 'high'"),
        ([block_copy(api_version=2)], "BlockCopyInfo 'fast' speaks plugin API 2"),
        ([block_copy(), block_copy()], "'fast' is announced twice"),
        ([block_copy(probe_limit_s=0)], "BlockCopyInfo 'fast' has probe_limit_s 0; expected None or seconds above 0"),
        ([block_copy(probe_limit_s=True)], "BlockCopyInfo 'fast' has probe_limit_s True"),
        ([block_copy(probe_limit_s="5")], "BlockCopyInfo 'fast' has probe_limit_s '5'"),
    ],
)
def test_a_wrong_copy_record_is_refused_with_the_whole_plugin(returned, message):
    registry = PluginRegistry(environ={})

    with pytest.raises(PluginError, match=message):
        registry.register(Announcing([backend()], returned), MINE)

    assert (names(registry.backends), names(registry.copies)) == (["bytes"], ["bytes"])


def test_a_hook_that_raises_is_refused_with_what_it_raised():
    class Raising:
        @hookimpl
        def cachecore_register_backends(self):
            yield backend()
            raise OSError("libvendor.so is missing")

    with pytest.raises(PluginError, match=r"cachecore_register_backends\(\) raised OSError: libvendor.so is missing"):
        PluginRegistry(environ={}).register(Raising(), MINE)


@pytest.mark.parametrize("error", [SystemExit(2), GeneratorExit("x"), AllocationError("full"), ValueError("x")])
def test_whatever_a_hook_raises_is_refused_and_leaves_no_trace(error):
    class Raising:
        @hookimpl
        def cachecore_register_backends(self):
            raise error

    registry = PluginRegistry(environ={})
    with pytest.raises(PluginError, match=rf"^plugin 'mine' of cachecore-mine: .*{type(error).__name__}: {error}$"):
        registry.register(Raising(), MINE)

    registry.register(Announcing([backend()]), MINE)
    assert names(registry.backends) == ["bytes", "vendor"]


def test_a_plugin_that_cannot_be_looked_into_is_refused():
    class Odd:
        def __dir__(self):
            raise SystemExit("no names")

    registry = PluginRegistry(environ={})
    with pytest.raises(PluginError, match=r"^plugin 'mine' of cachecore-mine: SystemExit: no names$"):
        registry.register(Odd(), MINE)

    registry.register(Announcing([backend()]), MINE)
    assert names(registry.backends) == ["bytes", "vendor"]


def test_an_interrupted_registration_leaves_no_trace():
    class Interrupted:
        @hookimpl
        def cachecore_register_backends(self):
            raise KeyboardInterrupt

    registry = PluginRegistry(environ={})
    with pytest.raises(KeyboardInterrupt):
        registry.register(Interrupted(), MINE)

    registry.register(Announcing([backend()]), MINE)

    assert names(registry.backends) == ["bytes", "vendor"]


def test_a_plugin_is_registered_once_and_stays():
    registry = PluginRegistry(environ={})

    class Choosing(Announcing):
        @hookimpl
        def cachecore_choose_backend(self, device, candidates):
            return "bytes"

    plugin = Choosing([backend()])
    registry.register(plugin, MINE)
    with pytest.raises(PluginError, match=r"plugin 'mine' of cachecore-mine is registered already"):
        registry.register(plugin, MINE)

    assert names(registry.backends) == ["bytes", "vendor"]
    assert registry.select("null").chosen.info.name == "bytes"  # its other hook is still heard


def test_copies_can_be_switched_off_by_name():
    registry = PluginRegistry(environ={"CACHECORE_DISABLE_COPIES": "fast, other"})
    registry.register(Announcing(copies=[block_copy("fast"), block_copy("slow", 10)]), MINE)

    assert [info.name for info in registry.copy_infos()] == ["slow", "bytes"]


def test_copies_of_one_distribution_can_go_first():
    registry = PluginRegistry(environ={"CACHECORE_DISABLE_COPIES": "off"})
    other = PluginRecord("other", "cachecore-other", "1")
    registry.register(Announcing(copies=[block_copy("fast", 90), block_copy("off", 99)]), other)
    registry.register(Announcing([backend()], [block_copy("own", 10), block_copy("own-slow", 2)]), MINE)

    first = registry.with_copies_first(MINE.distribution)

    assert [info.name for info in first.copy_infos()] == ["own", "own-slow", "fast", "bytes"]
    assert [info.name for info in registry.copy_infos()] == ["fast", "own", "own-slow", "bytes"]
    assert [info.name for info in registry.with_copies_first("none").copy_infos()] == [
        "fast",
        "own",
        "own-slow",
        "bytes",
    ]
    assert names(first.backends) == ["bytes", "vendor"]


def test_copies_are_probed_within_the_registrys_limit():
    registry = PluginRegistry(environ={}, probe_limit_s=0.5)
    fast = block_copy("fast")
    registry.register(Announcing(copies=[fast]), MINE)

    infos = registry.copy_infos()

    assert [info.probe_limit_s for info in infos] == [0.5, 0.5]
    assert infos[0] == fast
    assert fast.probe_limit_s is None


@pytest.mark.parametrize("limit", [0, -1, None, "5", True, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises((TypeError, ValueError), match=r"probe_limit_s must be seconds above 0, not "):
        PluginRegistry(environ={}, probe_limit_s=limit)
