from __future__ import annotations

import inspect

import pluggy
import pytest
from announcing import MINE, backend, block_copy, registry_of

from cachecore import BackendInfo, ByteBackend, PluginRegistry, StandardLayoutPolicy, hookimpl, hookspecs
from cachecore.transfer import ByteCopy

SIGNATURES = {
    "cachecore_register_backends": "() -> 'Sequence[BackendInfo]'",
    "cachecore_register_block_copies": "() -> 'Sequence[BlockCopyInfo]'",
    "cachecore_choose_backend": "(device: 'str', candidates: 'tuple[BackendInfo, ...]') -> 'str | None'",
}


def test_there_are_exactly_these_hooks():
    assert {name for name in vars(hookspecs) if name.startswith("cachecore_")} == set(SIGNATURES)


@pytest.mark.parametrize(("hook", "signature"), SIGNATURES.items())
def test_a_hooks_signature_is_an_interface(hook, signature):
    assert str(inspect.signature(getattr(hookspecs, hook))) == signature


@pytest.mark.parametrize(("hook", "first"), [(hook, hook == "cachecore_choose_backend") for hook in SIGNATURES])
def test_no_first_result_ever_announces_hardware(hook, first):
    manager = pluggy.PluginManager(hookspecs.ENTRY_POINT_GROUP)
    manager.add_hookspecs(hookspecs)

    assert getattr(manager.hook, hook).spec.opts["firstresult"] is first


def test_cachecore_register_backends_announces_backends():
    class Plugin:
        @hookimpl
        def cachecore_register_backends(self):
            return [
                backend("one"),
                BackendInfo("two", ("npu",), 5, lambda device: None, StandardLayoutPolicy, ByteBackend),
            ]

    registry = PluginRegistry(environ={})
    registry.register(Plugin(), MINE)

    assert [record.info.name for record in registry.backends] == ["bytes", "one", "two"]


def test_cachecore_register_block_copies_announces_copies_of_a_plugin_that_is_no_backend():
    class Plugin:
        @hookimpl
        def cachecore_register_block_copies(self):
            return (block_copy("fast", 90, build=ByteCopy),)

    registry = PluginRegistry(environ={})
    registry.register(Plugin(), MINE)

    assert [info.name for info in registry.copy_infos()] == ["fast", "bytes"]
    assert [record.info.name for record in registry.backends] == ["bytes"]


def test_cachecore_choose_backend_may_take_fewer_arguments():
    class Application:
        @hookimpl
        def cachecore_choose_backend(self, candidates):
            return candidates[-1].name

    registry = registry_of(backend("fast", priority=90))
    registry.register(Application(), MINE)

    assert registry.select("null").chosen.info.name == "bytes"


def test_only_marked_functions_are_hooks():
    class Plugin:
        def cachecore_register_backends(self):
            raise AssertionError("not marked")

    registry = PluginRegistry(environ={})
    registry.register(Plugin(), MINE)

    assert [record.info.name for record in registry.backends] == ["bytes"]
