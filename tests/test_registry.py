from __future__ import annotations

import os
import subprocess
import sys
from itertools import permutations

import pytest
from announcing import names
from installed import BROKEN, install, install_good
from samples import kv_plan, plan_set

from cachecore import API_VERSION, NoBackendError, PluginError, PluginRegistry, open_engine
from cachecore.ranking import PluginRecord


def loaded(**environ):
    registry = PluginRegistry(environ=environ, probe_limit_s=0.2)
    registry.load_entry_points()
    return registry


def test_the_null_device_is_always_there():
    registry = PluginRegistry(environ={})

    assert names(registry.backends) == ["bytes"]
    assert registry.backends[0].plugin.distribution == "cachecore-kv"
    assert names(registry.copies) == ["bytes"]
    assert (registry.plugins, registry.failures, registry.skipped) == ([], [], [])


def test_its_repr_names_what_is_registered_and_nothing_of_the_environment(on_path, tmp_path):
    for name in ("one", "two"):
        on_path(install_good(tmp_path / name, f"plugin_{name}", entry=name))

    registry = loaded(API_TOKEN="hunter2", CACHECORE_PLUGINS="one")

    skipped = ", ".join(sorted(failure.plugin.name for failure in registry.skipped))
    assert "two" in skipped
    assert repr(registry) == (
        f"<PluginRegistry of 1 plugins: backends bytes, plugin_one; copies bytes, plugin_one; skipped {skipped}>"
    )


def test_nothing_is_loaded_by_import_or_construction(on_path, tmp_path):
    install(tmp_path, "plugin_eager", "raise SystemExit('loaded')")
    on_path(tmp_path)

    PluginRegistry(environ={})

    assert "plugin_eager" not in sys.modules
    code = "import cachecore, sys; cachecore.PluginRegistry(); sys.exit('plugin_eager' in sys.modules)"
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_an_installed_plugin_is_found_with_its_origin(on_path, tmp_path):
    on_path(install_good(tmp_path, "plugin_one", version="2.5", entry="one"))

    registry = loaded(CACHECORE_PLUGINS="one")

    origin = PluginRecord("one", "plugin-one", "2.5")
    assert registry.plugins == [origin]
    assert names(registry.backends) == ["bytes", "plugin_one"]
    assert (registry.backends[1].plugin, registry.copies[1].plugin) == (origin, origin)


BROKEN_AT_LOAD = {
    "import_error": "import of 'broken_import_error' failed: ModuleNotFoundError: No module named 'a_driver",
    "misspelt_hook": "unknown hook 'cachecore_register_backend'",
    "wrong_argument": "{'platform'} are declared in the hookimpl but can not be found in the hookspec",
    "wrong_return_type": "cachecore_register_backends() returned [{'name': 'wrong-return-type'",
    "too_new_api": f"'too-new' speaks plugin API {API_VERSION + 1}, this cachecore {API_VERSION}; install matching",
}


@pytest.mark.parametrize("fault", BROKEN_AT_LOAD)
def test_a_broken_plugin_hides_no_other_and_is_kept_with_its_reason(fault, on_path, tmp_path):
    on_path(BROKEN / fault, install_good(tmp_path, "plugin_good"))
    entry = f"broken-{fault.replace('_', '-')}"

    registry = loaded(CACHECORE_PLUGINS=f"{entry},plugin_good")

    (failure,) = registry.failures
    assert failure.plugin == PluginRecord(entry, f"cachecore-{entry}", "1.0")
    assert BROKEN_AT_LOAD[fault] in failure.reason
    assert [plugin.name for plugin in registry.plugins] == ["plugin_good"]
    assert names(registry.backends) == ["bytes", "plugin_good"]
    assert registry.select("null").chosen.info.name == "plugin_good"


def test_all_broken_plugins_together_hide_nothing(on_path, tmp_path):
    on_path(*(BROKEN / fault for fault in BROKEN_AT_LOAD), BROKEN / "probe_raises", BROKEN / "probe_hangs")
    on_path(BROKEN / "duplicate_name", install_good(tmp_path, "zz_plugin_last", priority=1))
    ours = [f"broken-{fault.replace('_', '-')}" for fault in (*BROKEN_AT_LOAD, "probe_raises", "probe_hangs")]

    registry = loaded(
        CACHECORE_PLUGINS=",".join([*ours, "broken-duplicate-name-a", "broken-duplicate-name-b", "zz_plugin_last"])
    )
    selection = registry.select("null")

    assert sorted(failure.plugin.name for failure in registry.failures) == sorted(
        f"broken-{fault.replace('_', '-')}" for fault in BROKEN_AT_LOAD
    )
    assert selection.chosen.info.name == "zz_plugin_last"
    reasons = {record.info.name: reason for record, reason in selection.rejected}
    assert set(reasons) == {"bytes", "twin", "probe-raises", "probe-hangs"}


@pytest.mark.parametrize(
    "error", ["ValueError('x')", "SystemExit(3)", "GeneratorExit('x')", "ImportError('x') from OSError('libx.so')"]
)
def test_whatever_an_import_raises_becomes_the_reason(error, on_path, tmp_path):
    on_path(install(tmp_path, "plugin_bad", f"raise {error}"))

    (failure,) = loaded(CACHECORE_PLUGINS="plugin_bad").failures

    kind = error.partition("(")[0]
    assert f"import of 'plugin_bad' failed: {kind}: " in failure.reason
    assert ("libx.so" in failure.reason) is ("libx.so" in error)


def test_a_plugin_that_exits_ends_nothing(on_path):
    on_path(BROKEN / "exits")
    registry = loaded(CACHECORE_PLUGINS="broken-exits")

    selection = registry.select("null")

    assert selection.chosen.info.name == "exits-at-load"
    rejected = {record.info.name: reason for record, reason in selection.rejected}
    assert rejected["exits-at-probe"] == "probe raised SystemExit: broken-exits has seen enough"
    assert registry.plan_backend("null").info.name == "bytes"
    with pytest.raises(NoBackendError, match=r"load_policy\(\) raised SystemExit: broken-exits has seen enough"):
        registry.plan_backend("null", backend="exits-at-load")
    plans = plan_set(kv_plan())
    who = r"backend 'exits-at-load' of cachecore-broken-exits: load\(\) raised SystemExit: broken-exits has seen enough"
    with pytest.raises(PluginError, match=who):
        open_engine(plans, 1, registry=registry)
    with pytest.raises(
        PluginError, match=r"block copy 'exits-at-build': build\(\) raised SystemExit: broken-exits has"
    ):
        open_engine(plans, 1, backend="bytes", registry=registry)


DAMAGE = {
    "undecodable metadata": ("METADATA", b"\xff\xfe\x00Name", ["plugin_good", "plugin_odd"], None),
    "empty metadata": ("METADATA", b"", ["plugin_good", "plugin_odd"], None),
    "undecodable entry points": (
        "entry_points.txt",
        b"\xff\xfe[cachecore]\nx=y",
        ["plugin_good"],
        "UnicodeDecodeError",
    ),
    "malformed entry points": ("entry_points.txt", b"[cachecore]\nplugin_odd\n= \n", ["plugin_good"], "TypeError"),
}


@pytest.mark.parametrize(("file", "content", "left", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_of_one_distribution_hide_no_other(file, content, left, reason, on_path, tmp_path):
    install_good(tmp_path / "a", "plugin_odd", priority=20)
    (tmp_path / "a" / "plugin_odd-1.0.dist-info" / file).write_bytes(content)
    on_path(tmp_path / "a", install_good(tmp_path / "b", "plugin_good", priority=90))

    registry = loaded(CACHECORE_PLUGINS="plugin_odd,plugin_good")

    assert [plugin.name for plugin in registry.plugins] == left
    assert registry.select("null").chosen.info.name == "plugin_good"
    told = [failure for failure in registry.failures if "cannot be read" in failure.reason]
    assert [failure.plugin.distribution for failure in told] == ([] if reason is None else ["plugin-odd"])
    assert all(f"entry_points.txt cannot be read: {reason}" in failure.reason for failure in told)


def test_beside_a_damaged_distribution_the_first_of_one_name_is_loaded(on_path, tmp_path):
    install_good(tmp_path / "a", "plugin_odd")
    (tmp_path / "a" / "plugin_odd-1.0.dist-info" / "entry_points.txt").write_bytes(b"\xff\xfe")
    install_good(tmp_path / "c", "plugin_good")
    (tmp_path / "c" / "plugin_good-1.0.dist-info").rename(tmp_path / "c" / "plugin_good-0.9.dist-info")
    metadata = tmp_path / "c" / "plugin_good-0.9.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.0", "0.9"))
    on_path(tmp_path / "c", install_good(tmp_path / "b", "plugin_good"), tmp_path / "a")

    registry = loaded(CACHECORE_PLUGINS="plugin_odd,plugin_good")

    assert [(plugin.name, plugin.version) for plugin in registry.plugins] == [("plugin_good", "1.0")]
    assert [failure.plugin.distribution for failure in registry.failures] == ["plugin-odd"]


def test_a_damaged_dist_info_hides_no_other(on_path, tmp_path):
    install_good(tmp_path / "a", "plugin_damaged")
    (tmp_path / "a" / "plugin_damaged-1.0.dist-info" / "METADATA").unlink()
    on_path(tmp_path / "a", install_good(tmp_path / "b", "plugin_good", priority=90))

    registry = loaded(CACHECORE_PLUGINS="plugin_damaged,plugin_good")

    assert {(plugin.name, plugin.distribution) for plugin in registry.plugins} == {
        ("plugin_damaged", "unknown"),
        ("plugin_good", "plugin-good"),
    }


def test_a_distribution_met_twice_is_loaded_once(on_path, tmp_path):
    for folder in ("a", "b"):
        on_path(install_good(tmp_path / folder, "plugin_twice"))

    registry = loaded(CACHECORE_PLUGINS="plugin_twice")
    registry.load_entry_points()

    assert names(registry.backends) == ["bytes", "plugin_twice"]
    assert (len(registry.plugins), registry.failures) == (1, [])


def test_a_broken_distribution_is_told_once(on_path):
    on_path(BROKEN / "import_error")

    registry = loaded(CACHECORE_PLUGINS="broken-import-error")
    registry.load_entry_points()

    assert len(registry.failures) == 1


def test_denied_plugins_are_not_imported(on_path, tmp_path):
    on_path(install_good(tmp_path, "plugin_one"), install_good(tmp_path, "plugin_two"))

    registry = loaded(CACHECORE_PLUGINS="plugin_one,plugin_two", CACHECORE_DISABLE_PLUGINS=" plugin_two ,x")

    assert [plugin.name for plugin in registry.plugins] == ["plugin_one"]
    assert ("plugin_two", "denied by CACHECORE_DISABLE_PLUGINS") in [
        (failure.plugin.name, failure.reason) for failure in registry.skipped
    ]
    assert "plugin_two" not in sys.modules


def test_plugins_that_are_not_allowed_are_not_imported(on_path, tmp_path):
    on_path(install_good(tmp_path, "plugin_one"), install_good(tmp_path, "plugin_two"))

    registry = loaded(CACHECORE_PLUGINS="plugin_one")

    assert [plugin.name for plugin in registry.plugins] == ["plugin_one"]
    assert ("plugin_two", "not allowed by CACHECORE_PLUGINS") in [
        (failure.plugin.name, failure.reason) for failure in registry.skipped
    ]
    assert "plugin_two" not in sys.modules


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_on_the_path_decides_nothing(order, on_path, tmp_path):
    # pluggy calls hooks in the order of registration, and that in the order of the path.
    plugins = [("plugin_a", 30), ("plugin_b", 70), ("plugin_c", 50)]
    for number in order:
        name, priority = plugins[number]
        on_path(install_good(tmp_path / name, name, priority=priority))

    registry = loaded(CACHECORE_PLUGINS="plugin_a,plugin_b,plugin_c")

    assert [plugin.name for plugin in registry.plugins] == ["plugin_a", "plugin_b", "plugin_c"]
    assert registry.select("null").chosen.info.name == "plugin_b"
    assert [info.name for info in registry.copy_infos()] == ["plugin_b", "plugin_c", "plugin_a", "bytes"]
