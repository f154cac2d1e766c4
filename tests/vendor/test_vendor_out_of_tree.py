"""A stranger's layout and a stranger's copy, each from a wheel of its own: found, ranked, explained, used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PLAN = ("plan", "--layers", "6", "--kv-heads", "2", "--head-dim", "32", "--dtype", "float16", "--block-size", "32")
PLAN += ("--kernel-block-size", "16", "--device", "cpu")


@pytest.fixture(scope="module")
def environment(installed):
    """The core, torch-default, the layout, and the copy."""
    return installed("cachecore-kv", "cachecore-torch-default", "cachecore-cpu", "banded-layout", "host-memmove")


def test_both_are_found_ranked_and_used(environment):
    forced = {"CACHECORE_BACKEND": "banded"}
    told = json.loads(environment.cachecore("backends", "--device", "cpu", "--check", "--json", **forced))

    plugins = {one["name"]: (one["distribution"], one["version"], one["status"]) for one in told["plugins"]}
    assert plugins["banded"] == ("banded-layout", "0.3.0", "loaded")
    assert plugins["host-memmove"] == ("host-memmove", "0.3.0", "loaded")
    assert [(one["name"], one["priority"]) for one in told["block_copies"]][:2] == [
        ("host-memmove", 200),
        ("cpu-memory-speed", 100),
    ]
    (device,) = told["devices"]
    assert (device["chosen"], device["why"]) == ("banded", "forced as 'banded'")
    ways = {copy["direction"]: (copy["record"], copy["path"], copy["fallback"]) for copy in device["check"]["copies"]}
    assert ways == dict.fromkeys(("copy", "swap_out", "swap_in"), ("host-memmove", "memmove:runs", False))


def test_the_ranking_is_told(environment):
    (device,) = json.loads(environment.cachecore("backends", "--device", "cpu", "--json"))["devices"]

    assert (device["chosen"], device["why"]) == ("cpu", "priority 100, ahead of banded 20, torch-default 10")
    assert {one["backend"]: one["reason"] for one in device["others"]}["banded"] == "priority 20, 'cpu' has 100"


def test_without_a_better_one_the_stranger_wins(environment):
    (device,) = json.loads(
        environment.cachecore("backends", "--device", "cpu", "--json", CACHECORE_DISABLE_PLUGINS="cpu")
    )["devices"]

    assert (device["chosen"], device["why"]) == ("banded", "priority 20, ahead of torch-default 10")


def test_the_layout_is_explained(environment):
    environment.cachecore(*PLAN, "--backend", "banded", "-o", "plan.json")

    told = environment.cachecore("explain", "plan.json")

    assert "policy    banded version 1" in told
    assert "device layout: banded\n    chosen by policy 'banded' version 1" in told
    # K and V of a page: 2 * (16 tokens * 2 heads * 32 elements * 2 bytes) = 4,096 bytes; six layers are 4 and 2
    assert "pool 0: uint8[4, entries, 4096]" in told
    assert "pool 1: uint8[2, entries, 4096]" in told


def test_an_engine_of_another_policy_refuses_the_plan(environment):
    environment.cachecore(*PLAN, "--backend", "banded", "-o", "plan.json")
    code = (
        "from cachecore import CachePlanSet, open_engine\n"
        "plans = CachePlanSet.loads(open('plan.json', 'rb').read())\n"
        "try:\n    open_engine(plans, 4, backend='torch-default')\n"
        "except ValueError as error:\n    print(error)"
    )

    told = environment.run("-P", "-c", code)

    assert "'banded' version" in told
    assert "'torch-default'" in told


def test_a_copy_that_is_switched_off_leaves_the_next_in_rank(environment):
    (device,) = json.loads(
        environment.cachecore(
            *("backends", "--device", "cpu", "--check", "--json"),
            CACHECORE_BACKEND="banded",
            CACHECORE_DISABLE_COPIES="host-memmove",
        )
    )["devices"]

    assert {copy["record"] for copy in device["check"]["copies"]} == {"cpu-memory-speed"}


def test_both_keep_every_contract(environment):
    report = json.loads(environment.cachecore("check", "banded", "--device", "cpu", "--json"))

    assert (report["status"], report["distribution"]) == ("pass", "banded-layout")
    told = {one["id"]: one["told"] for level in report["levels"] for one in level["checks"]}
    assert {told[name] for name in told if name.startswith("copy/one-pair[")} == {"memmove:runs"}


def test_a_copy_without_a_backend_is_checked_with_one_that_has_its_own(environment):
    told = environment.cachecore("check", "cpu", "--copies", "host-memmove", "--level", "copy")

    assert "\n  copy by host-memmove of host-memmove, priority 200: memmove:runs\n" in told
    usual = environment.cachecore("check", "cpu", "--level", "copy")
    assert "\n  copy by cpu-memory-speed of cachecore-cpu, priority 100: " in usual
    assert "host-memmove of host-memmove, priority 200, goes before cpu-memory-speed of cachecore-cpu" in usual


UNCHANGED = """
import importlib, inspect, json, pkgutil, sys
import cachecore

for module in pkgutil.walk_packages(cachecore.__path__, "cachecore."):
    if not module.name.startswith(("cachecore.testing", "cachecore.__main__")):
        importlib.import_module(module.name)

def strangers():
    return sorted(name for name in sys.modules if name.partition(".")[0] in ("banded_layout", "host_memmove"))

def attributes():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "cachecore":
            for owner in (module, *(one for one in vars(module).values() if inspect.isclass(one))):
                if owner is module or owner.__module__.partition(".")[0] == "cachecore":
                    for attribute, value in list(vars(owner).items()):
                        found[f"{name}:{getattr(owner, '__qualname__', '')}.{attribute}"] = value
    return found

before, imported = attributes(), strangers()
if __PATCH__:
    cachecore.engine.CacheEngine.copy_blocks = lambda self, pairs: None
plans = cachecore.build_block_cache_plan(
    kv=cachecore.KvCacheConfig(layers=6, num_kv_heads=2, head_dim=32, dtype="float16"),
    geometry=cachecore.BlockCacheGeometry(32, 16),
    device="cpu",
    backend="banded",
)
with cachecore.open_engine(plans, 8, host_counts=4, backend="banded") as engine:
    keys, values = engine.layer_caches[5]
    keys.fill_(1.5), values.fill_(-2)
    keys[0].fill_(7)
    engine.copy_blocks({0: 3})
    engine.swap_out({3: 1}).synchronize()
    engine.swap_in({1: 6}).synchronize()
    moved = [keys[2 * block].float().mean().item() for block in range(8)]  # two pages a block
    stats = engine.stats().to_json()
    copies = stats["groups"][0]["copies"]
after = attributes()
changed = sorted(name for name in before if name not in after or before[name] is not after[name])
known = {name.partition(":")[0] for name in before}
print(json.dumps({
    "imported by the core": imported,
    "in the end": strangers(),
    "changed": changed,
    "added": sorted(name for name in after if name not in before and name.partition(":")[0] in known),
    "layout": plans.groups[0].layout.kind,
    "pools": len(plans.groups[0].layout.pools),
    "moved": moved,
    "backend": stats["backend"],
    "copies": [[one[key] for key in ("direction", "record", "path", "num_blocks")] for one in copies],
}))
"""


def told_of(environment, *, patch: bool = False) -> dict[str, object]:
    script = environment.folder / "unchanged.py"
    script.write_text(UNCHANGED.replace("__PATCH__", str(patch)), encoding="utf-8")
    return json.loads(environment.run("-P", script))


def test_nothing_of_the_core_imports_or_is_changed_by_them(environment):
    told = told_of(environment)

    assert told == {
        "imported by the core": [],
        "in the end": ["banded_layout", "banded_layout.policy", "host_memmove"],
        "changed": [],
        "added": [],
        "layout": "banded",
        "pools": 2,
        # the first page of block 0 holds 7, and went to blocks 3 and 6
        "moved": [7.0, 1.5, 1.5, 7.0, 1.5, 1.5, 7.0, 1.5],
        "backend": "banded",
        "copies": [
            ["copy", "host-memmove", "memmove:runs", 1],
            ["swap_out", "host-memmove", "memmove:runs", 1],
            ["swap_in", "host-memmove", "memmove:runs", 1],
        ],
    }


def test_a_changed_attribute_would_be_seen(environment):
    told = told_of(environment, patch=True)

    names = ("added", "changed")
    assert any("cachecore.engine:CacheEngine.copy_blocks" in told[name] for name in names)


def test_no_source_of_the_core_names_them():
    root = Path(__file__).resolve().parents[2]
    sources = [*root.glob("cachecore/**/*.py"), *root.glob("plugins/*/src/**/*.py")]

    assert len(sources) > 100
    assert not [path for path in sources for name in ("banded", "host_memmove") if name in path.read_text("utf-8")]
