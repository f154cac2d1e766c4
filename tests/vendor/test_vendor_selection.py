"""Which of several installed vendors serves: wheels made by ``cachecore new-backend``, and the real command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PLAIN_PROBE = "    return probe_torch(device)\n"
NEEDS_A_LIBRARY = """    import os

    return None if os.environ.get("BOLT") else "libbolt.so is missing; install bolt-runtime"
"""


@pytest.fixture(scope="module")
def vendors(installed, tmp_path_factory):
    """Two vendors of device ``cpu``, the second with a library of its own, and a plugin that breaks at import."""
    made, folder = installed("cachecore-kv", "cachecore-torch-default"), tmp_path_factory.mktemp("vendors")
    sources: list[Path] = []
    for name in ("acme", "bolt", "crash"):
        sources.append(folder / name)
        made.cachecore("new-backend", name, "--directory", sources[-1])
        plugin = sources[-1] / "src" / f"cachecore_{name}" / "plugin.py"
        text = plugin.read_text(encoding="utf-8")
        assert PLAIN_PROBE in text
        if name == "bolt":
            plugin.write_text(text.replace(PLAIN_PROBE, NEEDS_A_LIBRARY), encoding="utf-8")
        if name == "crash":
            plugin.write_text(text.replace("\nfrom cachecore import (", "\nimport libcrash\nfrom cachecore import ("))
    out = folder / "wheels"
    made.run("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", out, *sources)
    made.run("-m", "pip", "install", "--quiet", "--no-deps", *sorted(out.glob("*.whl")))
    return made


def asked(vendors, expect: int = 0, **variables: str) -> dict[str, object]:
    told = vendors.cachecore("backends", "--device", "cpu", "--json", expect=expect, **variables)
    return json.loads(told[: told.rindex("}") + 1])["devices"][0]


def test_a_new_backend_keeps_every_contract_as_it_stands(vendors):
    report = json.loads(vendors.cachecore("check", "acme", "--json"))

    assert (report["status"], report["device"]) == ("pass", "cpu")
    passed = {level["level"] for level in report["levels"] if level["status"] == "pass"}
    assert passed == {level["level"] for level in report["levels"]} - {"order"}  # the CPU has no streams


def test_the_one_that_is_there_serves_and_the_other_says_what_it_lacks(vendors):
    device = asked(vendors)

    assert (device["chosen"], device["why"]) == ("acme", "priority 50, ahead of torch-default 10")
    assert {one["backend"]: one["reason"] for one in device["others"]}["bolt"] == (
        "libbolt.so is missing; install bolt-runtime"
    )


def test_the_right_one_opens_an_engine(vendors):
    told = vendors.cachecore("backends", "--device", "cpu", "--check", BOLT="1", CACHECORE_DISABLE_PLUGINS="acme")

    assert "device cpu: bolt, priority 50, ahead of torch-default 10\n" in told
    assert re.search(r"^    copy(, swap_out, swap_in)? by bolt-blocks, path bolt:strided$", told, re.MULTILINE)


def test_two_that_serve_are_an_error_that_tells_the_way_out(vendors):
    device = asked(vendors, 1, BOLT="1")

    assert device["chosen"] is None
    assert device["error"] == (
        "backends 'acme' (cachecore-acme) and 'bolt' (cachecore-bolt) both serve cpu with priority 50; "
        "say which with CACHECORE_BACKEND"
    )


@pytest.mark.parametrize("forced", ["bolt", "bolt@cachecore-bolt"])
def test_the_way_out_works(vendors, forced):
    device = asked(vendors, BOLT="1", CACHECORE_BACKEND=forced)

    assert (device["chosen"], device["why"]) == ("bolt", f"forced as '{forced}'")


def test_one_that_is_forced_and_not_there_is_an_error_and_no_fallback(vendors):
    device = asked(vendors, 1, CACHECORE_BACKEND="bolt")

    assert device["chosen"] is None
    assert device["error"].startswith(
        "backend 'bolt', which is forced, does not serve cpu: "
        "bolt (cachecore-bolt): libbolt.so is missing; install bolt-runtime"
    )


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({"CACHECORE_PLUGINS": "bolt,torch-default"}, "bolt"),
        ({"CACHECORE_PLUGINS": "torch-default"}, "torch-default"),
        ({"CACHECORE_DISABLE_PLUGINS": "acme"}, "bolt"),
        ({"CACHECORE_DISABLE_PLUGINS": "acme,bolt"}, "torch-default"),
    ],
    ids=["allow", "allow-neither", "deny", "deny-both"],
)
def test_lists_decide_who_is_asked(vendors, variables, chosen):
    assert asked(vendors, BOLT="1", **variables)["chosen"] == chosen


def test_a_plugin_that_breaks_at_import_hides_nobody_and_is_named(vendors):
    told = json.loads(vendors.cachecore("backends", "--json"))

    crash = next(one for one in told["plugins"] if one["name"] == "crash")
    assert (crash["status"], crash["distribution"]) == ("failed", "cachecore-crash")
    assert crash["reason"] == (
        "import of 'cachecore_crash.plugin' failed: ModuleNotFoundError: No module named 'libcrash'"
    )
    assert next(one for one in told["devices"] if one["device"] == "cpu")["chosen"] == "acme"


def test_one_that_broke_and_is_forced_says_why(vendors):
    told = asked(vendors, 1, CACHECORE_BACKEND="crash")["error"]

    assert "there is no backend 'crash', which is forced; installed are " in told
    assert "crash (cachecore-crash): import of 'cachecore_crash.plugin' failed: ModuleNotFoundError" in told


def test_an_engine_takes_the_one_that_its_argument_names(vendors):
    code = (
        "import sys\n"
        "from cachecore import BlockCacheGeometry, KvCacheConfig, build_block_cache_plan, open_engine\n"
        "config = KvCacheConfig(layers=1, num_kv_heads=1, head_dim=32, dtype='float16')\n"
        "plans = build_block_cache_plan(kv=config, geometry=BlockCacheGeometry(16), device='cpu', backend='bolt')\n"
        "try:\n    open_engine(plans, 2, backend=sys.argv[1]).close()\nexcept Exception as error:\n"
        "    print(type(error).__name__, error)\nelse:\n    print('opened')\n"
    )

    assert vendors.run("-P", "-c", code, "bolt", BOLT="1", CACHECORE_BACKEND="acme") == "opened\n"
    told = vendors.run("-P", "-c", code, "acme", BOLT="1")
    assert told.startswith("PlanError ")
    assert "'bolt'" in told
    assert vendors.run("-P", "-c", code, "bolt").startswith(
        "NoBackendError backend 'bolt', which is forced, does not serve cpu: bolt (cachecore-bolt): libbolt.so is"
    )
