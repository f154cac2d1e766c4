"""Plugins that are folders of a test, and only those, for the command line in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import importlib_metadata
import pytest
from samples import kv_plan, plan_set

BROKEN = Path(__file__).parents[1] / "broken_plugins"

PLUGIN = """
from dataclasses import replace

from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, StandardLayoutPolicy, hookimpl
from cachecore.transfer import ByteCopy

class Demo(ByteBackend):
    name = "{name}"

class Dense(StandardLayoutPolicy):
    name = "dense"

    def select_block_layout(self, specs, geometry, hints):
        return super().select_block_layout([replace(one, per_row_contiguous=True) for one in specs], geometry, hints)

class Deaf(StandardLayoutPolicy):
    name = "deaf"

    def select_block_layout(self, specs, geometry, hints):
        return super().select_block_layout(specs, geometry, replace(hints, one_run_per_block=False))

@hookimpl
def cachecore_register_backends():
    return [BackendInfo("{name}", ("demo",), {priority}, {probe}, {policy}, Demo)]

@hookimpl
def cachecore_register_block_copies():
    return [BlockCopyInfo("{name}-copy", {priority}, lambda src, dst: None, ByteCopy)]

RESULT = dict(scenario="runs", run_nbytes=8192, num_pairs=64, path="bytes", gb_per_s=3.0, limit_gb_per_s=4.0)
RESULT.update(ratio=0.75, contiguous_ratio=0.5, submit_s=2e-5)

def bench(what, *, device, backend, own_copies, quick, progress):
    progress("measuring")
    yield {{**RESULT, "scenario": f"{{what}} {{device}} {{backend}} {{quick}} {{own_copies}}", "record": "{name}-copy"}}

def bench_of_hints(what, *, one_run_per_block=False, **_):
    yield {{**RESULT, "scenario": f"hint: {{one_run_per_block}}", "one_run_per_block": one_run_per_block}}

def bench_with_a_baseline(what, **_):
    yield RESULT
    yield {{**RESULT, "path": "plain", "peer": True, "ratio": 1.25, "submit_s": 2.5e-3}}

def bench_without_a_ratio(what, **_):
    yield {{key: value for key, value in RESULT.items() if key != "ratio"}}

def bench_interrupted(what, **_):
    raise KeyboardInterrupt

no_bench = 3
"""


@pytest.fixture(autouse=True)
def _plugins_of_these_tests_only(tmp_path, monkeypatch):
    """Hide what the environment has installed, and forget what a test imported."""
    find = importlib_metadata.entry_points
    ours = str(tmp_path), str(BROKEN)

    def entry_points(**wanted):
        found = find(**wanted)
        return importlib_metadata.EntryPoints(
            entry for entry in found if entry.dist and str(entry.dist.locate_file("")).startswith(ours)
        )

    monkeypatch.setattr(importlib_metadata, "entry_points", entry_points)
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(ours):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a plugin, its dist-info included, for this process."""

    def installed(
        name="demo",
        *,
        distribution=None,
        priority=7,
        probe="lambda device: None",
        policy="StandardLayoutPolicy",
        bench=None,
        version="1.2",
    ):
        distribution = distribution or f"cachecore-{name}"
        module = f"{distribution}_module".replace("-", "_")
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").write_text(PLUGIN.format(name=name, priority=priority, probe=probe, policy=policy))
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        entries = f"[cachecore]\n{name} = {module}\n"
        if bench:
            entries += f"[cachecore.bench]\n{bench[0]} = {module}:{bench[1]}\n"
        (info / "entry_points.txt").write_text(entries)
        monkeypatch.syspath_prepend(str(site))
        return site

    return installed


@pytest.fixture
def plan_file(tmp_path) -> Path:
    """Three layers of packed K/V, planned for the null device."""
    path = tmp_path / "plan.json"
    path.write_text(plan_set(kv_plan(rows=3)).dumps())
    return path
