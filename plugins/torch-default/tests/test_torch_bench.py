"""The benchmark measures what moves the right bytes, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from cachecore_torch_default import bench, plugin
from cachecore_torch_default.bench import check, measure, ways
from cachecore_torch_default.bench.scenarios import Scenario
from cachecore_torch_default.block_copy import GatherScatterCopy

from cachecore import BlockCopyInfo, BlockPairs, PlanError, PluginError, PluginRegistry, hookimpl
from cachecore.registry import PluginRecord

TINY = Scenario("tiny", "two pools, two pages a block", ((3, 512), (2, 256)), pages_per_block=2)
KEYS = {
    "scenario",
    "run_nbytes",
    "num_pairs",
    "path",
    "gb_per_s",
    "limit_gb_per_s",
    "ratio",
    "contiguous_ratio",
    "submit_s",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = PluginRegistry(environ={})
    registry.register(plugin, PluginRecord("torch-default", "cachecore-torch-default", "0.1.0"))
    monkeypatch.setattr(measure, "default_registry", lambda: registry)
    monkeypatch.setitem(bench.SCENARIOS, "tiny", TINY)


@pytest.mark.parametrize(("what", "directions"), [("copy", ["copy"]), ("swap", ["swap_out", "swap_in"])])
def test_every_way_yields_a_result_with_every_key(what: str, directions: list[str]) -> None:
    before = torch.get_num_threads()

    results = list(bench.run(what, quick=True, scenarios=["tiny"], num_pairs=4))

    assert [result["direction"] for result in results] == [d for d in directions for _ in ways.WAYS]
    assert all(result.keys() >= KEYS for result in results)
    own = results[0]
    # A block has 3 runs of 2*512 bytes and 2 of 2*256: 4096 bytes in 5 runs.
    assert (own["path"], own["num_pairs"], own["nbytes"]) == ("torch:gather-scatter", 4, 4 * 4096)
    assert own["run_nbytes"] == 4096 // 5
    assert own["ratio"] == pytest.approx(own["gb_per_s"] / own["limit_gb_per_s"])
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("what", ["copy", "swap"])
def test_blocks_that_are_one_run_are_measured_as_one(what: str) -> None:
    results = list(bench.run(what, quick=True, scenarios=["tiny"], num_pairs=4, one_run_per_block=True))

    # 3 runs of 2*512 bytes and 2 of 2*256 in one
    assert {result["run_nbytes"] for result in results} == {4096}
    assert {result["one_run_per_block"] for result in results} == {True}
    assert {result["nbytes"] for result in results} == {4 * 4096}


def test_a_policy_that_does_not_honour_the_hint_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Scenario.plans
    monkeypatch.setattr(
        Scenario, "plans", lambda self, policy, device, backend, hints: ask(self, policy, device, backend)
    )

    with pytest.raises(PlanError, match="does not honour one_run_per_block: a block of tiny is 5 runs"):
        list(bench.run("copy", quick=True, scenarios=["tiny"], num_pairs=4, one_run_per_block=True))


def test_a_quick_look_moves_fewer_of_large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, int] = {}
    monkeypatch.setattr(
        measure,
        "measure_scenario",
        lambda scenario, way, *, num_pairs, **_: asked.update({scenario.name: num_pairs}) or (),
    )
    list(bench.run("copy", quick=True))

    # 128 MiB hold 16 blocks of 32 * 262144 bytes; 43 of 61 * 50432, so 32; 64 of 32 * 65536
    assert (asked["32x262144"], asked["61x41984+61x8448"], asked["32x65536"]) == (16, 32, 64)
    assert asked["80x8192-runs-of-16"] == 64


@pytest.mark.parametrize(("own_copies", "record"), [(False, "better"), (True, "torch-gather-scatter")])
def test_own_copies_go_first_when_asked(own_copies: bool, record: str) -> None:
    class Other:
        @hookimpl
        def cachecore_register_block_copies(self) -> list[BlockCopyInfo]:
            return [BlockCopyInfo("better", 90, lambda src, dst: None, GatherScatterCopy)]

    measure.default_registry().register(Other(), PluginRecord("other", "cachecore-other", "1"))
    backend = "torch-default@cachecore-torch-default"
    results = bench.run("copy", backend=backend, own_copies=own_copies, quick=True, scenarios=["tiny"], num_pairs=4)

    assert next(iter(results))["record"] == record


def test_memory_that_is_no_tensors_is_refused() -> None:
    with pytest.raises(PluginError, match=r"backend 'bytes' keeps its memory in ByteTensor, and this benchmark meas"):
        list(bench.run("copy", device="null", backend="bytes", quick=True, scenarios=["tiny"], num_pairs=4))


def broken(subject: ways.Subject) -> ways.Move:
    """Moves the right blocks, then one byte too many."""
    right = ways.engine_copy(subject)

    def move(pairs: BlockPairs) -> None:
        right(pairs)
        free = next(block for block in range(8) if block not in (*pairs.src, *pairs.dst))
        subject.engine.block_caches.row("pool_1", 1)[2 * free, 5] += 1

    return move


def idle(subject: ways.Subject) -> ways.Move:
    return lambda pairs: None


@pytest.mark.parametrize(("way", "told"), [(broken, "pool 1 that it must not touch"), (idle, "moved a wrong byte")])
def test_a_way_that_moves_wrong_bytes_is_refused(way: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "WAYS", {"bad": way})
    monkeypatch.setattr(measure, "draw_pairs", lambda *args: BlockPairs([0, 1], [4, 5]))

    with pytest.raises(PluginError, match=told):
        list(bench.run("copy", quick=True, scenarios=["tiny"], num_pairs=4))


@pytest.mark.parametrize("direction", ["copy", "swap_out", "swap_in"])
@pytest.mark.parametrize("neighbours", [1, 4])
def test_drawn_pairs_use_each_block_once_and_stand_together(direction: str, neighbours: int) -> None:
    pairs = measure.draw_pairs(direction, 16, neighbours, seed=3)

    assert len(set(pairs.src)) == len(set(pairs.dst)) == 16
    if direction == "copy":
        assert set(pairs.src).isdisjoint(pairs.dst)
    assert len(list(pairs.runs())) <= 16 // neighbours


def test_filling_leaves_no_equal_blocks_on_the_source() -> None:
    registry = measure.default_registry()
    record = registry.plan_backend("cpu")
    plans = TINY.plans(record.info.load_policy(), "cpu", record.info.name)
    with measure.open_engine(plans, 8, device="cpu", host_counts=4, registry=registry) as engine:
        check.fill(ways.Subject.of(engine, "copy", measure._segments(engine, "copy")))
        rows = engine.block_caches["pool_0"].view(3 * 16, 512)

        assert len(rows.unique(dim=0)) == 48


def test_the_benchmark_is_found_without_torch() -> None:
    script = "import sys; sys.modules['torch'] = None; from cachecore_torch_default.bench import run, SCENARIOS"

    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
