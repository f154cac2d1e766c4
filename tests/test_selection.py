"""Several vendors of one device, from folders as an installer leaves them: who plans, who serves, or which error."""

from __future__ import annotations

import pytest
from installed import install

from cachecore import (
    BlockCacheGeometry,
    KvCacheConfig,
    NoBackendError,
    PlanError,
    PluginError,
    PluginRegistry,
    build_block_cache_plan,
    open_engine,
)

VENDOR = """
    from cachecore import BackendInfo, ByteBackend, StandardLayoutPolicy, hookimpl
    from cachecore.layout_kinds import {layout}_layout

    class Policy(StandardLayoutPolicy):
        name = "{name}"

        def select_block_layout(self, specs, geometry, hints):
            return {layout}_layout(specs)

    class Backend(ByteBackend):
        name = "{name}"

        def __init__(self):
            super().__init__(Policy())

    @hookimpl
    def cachecore_register_backends():
        return [BackendInfo("{name}", ("null",), {priority}, lambda device: {reason!r}, Policy, Backend)]
"""


@pytest.fixture
def registry_with(on_path, tmp_path):
    """Install vendors ``acme`` (packed) and ``bolt`` (dense), and ``crash``, and load what the environment allows."""

    def make(*, acme=50, bolt=40, acme_reason=None, bolt_reason=None, **environ):
        for name, layout, priority, reason in (
            ("acme", "packed", acme, acme_reason),
            ("bolt", "contiguous", bolt, bolt_reason),
        ):
            source = VENDOR.format(name=name, layout=layout, priority=priority, reason=reason)
            on_path(install(tmp_path / name, f"plugin_{name}", source, entry=name))
        on_path(install(tmp_path / "crash", "plugin_crash", "import libcrash", entry="crash"))
        registry = PluginRegistry(environ={"CACHECORE_PLUGINS": "acme,bolt,crash", **environ}, probe_limit_s=1.0)
        registry.load_entry_points()
        return registry

    return make


def plan(registry, backend=None):
    return build_block_cache_plan(
        kv=KvCacheConfig(layers=2, num_kv_heads=1, head_dim=16, dtype="float16"),
        geometry=BlockCacheGeometry(16),
        device="null",
        backend=backend,
        registry=registry,
    )


def opened(registry, plans, backend=None):
    with open_engine(plans, 4, backend=backend, registry=registry) as engine:
        return engine.stats().backend, plans.groups[0].layout.kind


@pytest.mark.parametrize(
    ("settings", "served"),
    [
        ({}, ("acme", "packed")),
        ({"bolt": 60}, ("bolt", "contiguous")),
        ({"CACHECORE_BACKEND": "bolt"}, ("bolt", "contiguous")),
        ({"CACHECORE_BACKEND": "bolt@plugin-bolt"}, ("bolt", "contiguous")),
        ({"CACHECORE_PLUGINS": "bolt"}, ("bolt", "contiguous")),
        ({"CACHECORE_DISABLE_PLUGINS": "acme"}, ("bolt", "contiguous")),
        ({"CACHECORE_DISABLE_PLUGINS": "acme, bolt"}, ("bytes", "packed")),
    ],
    ids=["priority", "other-priority", "forced", "forced-by-distribution", "allowed", "denied", "both-denied"],
)
def test_the_right_one_plans_and_serves(registry_with, settings, served):
    registry = registry_with(**settings)

    assert opened(registry, plan(registry)) == served


def test_an_argument_goes_before_the_environment(registry_with):
    registry = registry_with(CACHECORE_BACKEND="acme")

    assert opened(registry, plan(registry, "bolt"), "bolt") == ("bolt", "contiguous")


def test_a_tie_is_told_before_anything_is_planned(registry_with):
    registry = registry_with(bolt=50)

    with pytest.raises(
        PluginError, match=r"'acme' \(plugin-acme\) and 'bolt' \(plugin-bolt\) both .* CACHECORE_BACKEND"
    ):
        plan(registry)
    assert opened(registry, plan(registry, "bolt"), "bolt") == ("bolt", "contiguous")


def test_of_a_tie_the_one_that_is_there_plans_and_serves(registry_with):
    registry = registry_with(bolt=50, acme_reason="libacme.so is missing")

    assert opened(registry, plan(registry)) == ("bolt", "contiguous")


def test_a_plan_of_an_absent_vendor_is_not_opened_on_the_one_that_is_there(registry_with):
    """Planning asks no device, so the best claimant plans; the engine then says which policies differ."""
    registry = registry_with(acme_reason="libacme.so is missing")

    with pytest.raises(PlanError, match=r"'acme'.*'bolt'"):
        opened(registry, plan(registry))


@pytest.mark.parametrize(
    ("settings", "forced", "told"),
    [
        ({"bolt_reason": "libbolt.so is missing"}, "bolt", r"bolt \(plugin-bolt\): libbolt\.so is missing"),
        ({"CACHECORE_DISABLE_PLUGINS": "bolt"}, "bolt", r"bolt \(plugin-bolt\): denied by CACHECORE_DISABLE_PLUGINS"),
        ({"CACHECORE_PLUGINS": "acme"}, "bolt", r"bolt \(plugin-bolt\): not allowed by CACHECORE_PLUGINS"),
        ({}, "crash", r"crash \(plugin-crash\): import of 'plugin_crash' failed: ModuleNotFoundError: .*'libcrash'"),
        ({}, "botl", r"installed are bytes, acme, bolt; did you mean 'bolt'\?"),
        ({}, "bolt@plugin-acme", r"are bytes@cachecore-kv, acme@plugin-acme, bolt@plugin-bolt; did you mean"),
    ],
    ids=["unavailable", "denied", "not-allowed", "broken-at-import", "misspelt", "other-distribution"],
)
@pytest.mark.parametrize("way", ["argument", "environment"])
def test_one_that_is_forced_and_cannot_serve_is_an_error_with_the_reason(registry_with, settings, forced, told, way):
    registry = registry_with(**settings, **({"CACHECORE_BACKEND": forced} if way == "environment" else {}))

    with pytest.raises(NoBackendError, match=told) as caught:
        registry.select("null", backend=forced if way == "argument" else None)
    unable = f"backend {forced!r}, which is forced, does not serve null: ", f"there is no backend {forced!r}, which is"
    assert str(caught.value).startswith(unable)
    assert "`cachecore backends` shows all" in str(caught.value)


def test_one_that_broke_hides_nobody(registry_with):
    registry = registry_with()

    (failure,) = registry.failures
    assert failure.reason == "import of 'plugin_crash' failed: ModuleNotFoundError: No module named 'libcrash'"
    assert registry.select("null").chosen.info.name == "acme"


def test_where_nothing_serves_every_reason_is_told(registry_with):
    registry = registry_with()

    with pytest.raises(NoBackendError) as caught:
        registry.select("npu")
    assert set(caught.value.reasons) >= {
        "acme (plugin-acme): serves null, not npu",
        "bolt (plugin-bolt): serves null, not npu",
        "bytes (cachecore-kv): serves null, not npu",
        "crash (plugin-crash): import of 'plugin_crash' failed: ModuleNotFoundError: No module named 'libcrash'",
    }
