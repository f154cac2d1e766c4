"""Discovery of installed plugins: mutants that only a fresh process shows, as folders on ``sys.path``."""

from __future__ import annotations

import sys

import pytest
from installed import install

from cachecore.registry import PluginRegistry
from cachecore.testing import FAIL, SKIP, find_subject, run_checks

PLUGIN = """
    {head}
    import sys, time
    from cachecore import BackendInfo, ByteBackend, StandardLayoutPolicy, hookimpl

    class Policy(StandardLayoutPolicy):
        {policy}

    class Backend(ByteBackend):
        name = {name!r}

    def probe(device):
        {probe}

    def load_policy():
        {load_policy}
        return Policy()

    @hookimpl
    def cachecore_register_backends():
        return [BackendInfo({name!r}, ("sim",), 50, probe, load_policy, lambda: Backend(Policy()))]
"""

FAKE_TORCH = """
class sim:
    @staticmethod
    def is_initialized():
        return True
"""

LAYS_OUT_FOR_WHAT_IS_INSTALLED = """
        def select_block_layout(self, specs, geometry, hints):
            from cachecore.layout_kinds import row_layout
            try:
                import torch
            except ImportError:
                return row_layout(specs)
            return super().select_block_layout(specs, geometry, hints)
"""


@pytest.fixture
def subject_of(tmp_path, monkeypatch):
    """Install a plugin of that name with parts of it wrong, and find it as an application would."""

    def make(name, *, requires="cachecore-kv>=0.1", torch=None, **parts):
        source = PLUGIN.format(
            name=name,
            head=parts.get("head", ""),
            policy=parts.get("policy", "pass"),
            probe=parts.get("probe", "return None"),
            load_policy=parts.get("load_policy", "pass"),
        )
        install(tmp_path, name, source)
        with (tmp_path / f"{name}-1.0.dist-info" / "METADATA").open("a", encoding="utf-8") as metadata:
            metadata.write(f"Requires-Dist: {requires}\n")
        if torch is not None:
            (tmp_path / "torch.py").write_text(torch, encoding="utf-8")
            monkeypatch.setitem(sys.modules, "torch", None)
            monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.syspath_prepend(str(tmp_path))
        registry = PluginRegistry(environ={}, probe_limit_s=parts.get("limit_s", 5.0))
        registry.load_entry_points()
        return find_subject(registry, name)

    return make


def outcomes_of(subject, level="discovery"):
    return {outcome.id.partition("/")[2]: outcome for outcome in run_checks(subject, levels=(level,))}


def test_a_right_plugin_passes_discovery(subject_of):
    outcomes = outcomes_of(subject_of("conf_right"))

    assert {name: outcome.told for name, outcome in outcomes.items() if outcome.status in (FAIL, SKIP)} == {}
    assert outcomes["versions"].told == "conf-right 1.0"
    assert outcomes["probe-quick-in-a-fresh-process"].told.endswith("s: serves")


def only_failure(outcomes):
    failed = {name: outcome.told for name, outcome in outcomes.items() if outcome.status == FAIL}
    assert len(failed) == 1, failed
    return failed.popitem()


def test_a_policy_that_needs_torch_is_caught(subject_of):
    subject = subject_of("conf_torch", torch="", load_policy="import torch")

    name, told = only_failure(outcomes_of(subject))

    assert name == "policy-without-arrays"
    assert "No module named 'torch' (blocked by the conformance kit)" in told
    assert "torch, numpy or a driver imported at the top" in told


def test_a_plugin_module_that_needs_torch_is_caught(subject_of):
    subject = subject_of("conf_top", torch="", head="import torch")

    name, told = only_failure(outcomes_of(subject))

    assert name == "policy-without-arrays"
    assert "import of 'conf_top' failed: ModuleNotFoundError" in told


def test_a_policy_that_depends_on_what_is_installed_is_caught(subject_of):
    subject = subject_of("conf_depends", torch="", policy=LAYS_OUT_FOR_WHAT_IS_INSTALLED.strip())

    name, told = only_failure(outcomes_of(subject))

    assert name == "policy-without-arrays"
    assert "a layout that depends on what is installed" in told


def test_a_probe_that_is_slow_in_a_fresh_process_only_is_caught(subject_of):
    probe = 'time.sleep(0 if "pytest" in sys.modules else 0.6)'
    subject = subject_of("conf_slow", probe=probe, limit_s=0.5)

    name, told = only_failure(outcomes_of(subject))

    assert name == "probe-quick-in-a-fresh-process"
    assert "a cold import of the array library" in told


def test_a_probe_that_initialises_the_device_is_caught(subject_of):
    subject = subject_of("conf_context", torch=FAKE_TORCH, probe="import torch")

    name, told = only_failure(outcomes_of(subject))

    assert name == "probe-without-a-context"
    assert "after the probe torch.sim is initialised" in told


def test_a_version_written_down_twice_is_caught(subject_of):
    subject = subject_of("conf_version", head='__version__ = "2.0"')

    name, told = only_failure(outcomes_of(subject))

    assert name == "versions"
    assert told.startswith("conf_version.__version__: expected 1.0, as the distribution says, found 2.0.")


@pytest.mark.parametrize("requires", ["pluggy", "cachecore>=1"], ids=["not-the-core", "a-stranger"])
def test_a_plugin_that_does_not_require_the_core_is_caught(subject_of, requires):
    subject = subject_of(f"conf_requires_{requires[:2]}{len(requires)}", requires=requires)

    name, told = only_failure(outcomes_of(subject))

    assert name == "versions"
    assert "cachecore-kv" in told


def test_a_device_that_is_not_here_is_skipped_with_the_probes_reason(subject_of):
    subject = subject_of("conf_absent", probe='return "libsim.so is missing"')

    outcomes = outcomes_of(subject, "capabilities")

    assert {outcome.told for outcome in outcomes.values()} == {
        "backend 'conf_absent' does not serve sim here: libsim.so is missing"
    }
