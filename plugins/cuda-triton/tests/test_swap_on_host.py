"""A whole swap as an engine builds and calls it, every way, with the driver's work done by the host."""

from __future__ import annotations

import pytest
from cachecore_cuda_triton import swap
from cachecore_cuda_triton.calibration import Choice, Runs, engines_way
from cachecore_cuda_triton.swap import CudaSwap
from cachecore_torch_default import GatherScatterCopy, TorchBackend
from cachecore_torch_default.testing import (
    NUM_HOST_BLOCKS,
    KindPolicy,
    draw_swaps,
    engine_and_oracle,
    plan_sets,
    tier_contents,
)
from host_driver import INTERPRETED, HostRing, host_driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecore import (
    COMPLETED,
    AllocationError,
    BlockCacheCopy,
    BlockCopyInfo,
    CachePlanSet,
    CacheTensorSpec,
    CopyContext,
)

__all__ = ["host_driver"]


class FullRing(HostRing):
    """A device without room for slots."""

    def grow(self, nbytes: int) -> None:
        raise AllocationError("no room for slots")


def build(context: CopyContext) -> BlockCacheCopy:
    if context.same_allocation:
        return GatherScatterCopy(context)
    return CudaSwap(context, host_is_src=context.num_src_blocks == NUM_HOST_BLOCKS)


RECORD = BlockCopyInfo("on-the-host", 500, lambda src, dst: None, build)


def stand_in(patch: pytest.MonkeyPatch, kind: type[HostRing] = HostRing, each: str | None = None) -> None:
    """Of what a swap asks of the driver, only copies are left, which the host does."""
    ring = kind(1 << 8, patch)
    patch.setattr(swap, "staging_ring", lambda device, direction: ring)
    patch.setattr(swap, "why_each", lambda: each)
    patch.setattr(swap, "completion_of_stream", lambda device, stream: COMPLETED)
    for name in ("record", "wait"):
        patch.setattr(swap, name, lambda *_: None)


def chosen(way: str, device: object, direction: str, runs: Runs, hint: str) -> Choice:
    """Of the mixed way, the longest runs go by the engines."""
    most = max((length for length, _ in runs), default=0)
    by_engines = tuple(way == "engines" or (way == "mixed" and length == most) for length, _ in runs)
    names = {"engines": engines_way(runs), "mixed": "pitched+staged"}
    return Choice(names.get(way, way), by_engines, 0, f"as the test asks{hint}")


@pytest.mark.parametrize("full", [False, True], ids=["room", "no-room"])
@pytest.mark.parametrize("way", ["staged", "engines", "mixed", pytest.param("direct", marks=INTERPRETED)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=plan_sets(), data=st.data())
def test_both_directions_equal_the_byte_backend(
    host_driver: None,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    full: bool,
    drawn: tuple[CachePlanSet, KindPolicy],
    data: st.DataObject,
) -> None:
    plans, policy = drawn
    with monkeypatch.context() as patch:
        stand_in(patch, FullRing if full else HostRing)
        patch.setattr(swap, "choose", lambda *given: chosen(way, *given))
        real, oracle = engine_and_oracle(plans, TorchBackend(policy), "cpu", (RECORD,))
        out, back = draw_swaps(data.draw)

        for engine in (real, oracle):
            engine.swap_out(out).synchronize()
            engine.swap_in(back).synchronize()

        assert tier_contents(real, host=True) == tier_contents(oracle, host=True)
        assert tier_contents(real, host=False) == tier_contents(oracle, host=False)
        copies = [copy for copy in real.stats().groups[0].copies if copy.direction != "copy"]
        assert {copy.record for copy in copies} == {"on-the-host"}
        if full and way in ("staged", "mixed"):
            assert not any("staged" in copy.path for copy in copies if "no room for slots" in copy.reason)
            assert all(copy.workspace_nbytes == 0 for copy in copies)


@pytest.mark.parametrize("each", [None, "piece by piece, says the test"])
def test_small_swaps_go_direct_up_to_a_size(
    host_driver: None, monkeypatch: pytest.MonkeyPatch, each: str | None
) -> None:
    from engines import plan_set, specs_of

    plans = plan_set(specs_of())
    gone: list[tuple[str, int]] = []
    stand_in(monkeypatch, each=each)
    monkeypatch.setattr(swap, "choose", lambda device, direction, runs, hint: two_blocks_direct(runs))
    monkeypatch.setattr(swap, "copy_host_pairs", lambda table, src, *_, **more: gone.append(("direct", len(src))))
    monkeypatch.setattr(swap.EngineCopies, "queue", lambda self, pairs, stream: gone.append(("engines", len(pairs))))
    engine, _ = engine_and_oracle(plans, TorchBackend(), "cpu", (RECORD,))

    told = []
    for number in (2, 3):
        engine.swap_out({block: block for block in range(number)})
        told += [(one.path, one.reason) for one in engine.stats().groups[0].copies if one.direction == "swap_out"]

    assert gone == [("direct", 2), ("engines", 3)]
    direct, engines = told
    most = 2 * engine.stats().groups[0].copies[1].block_nbytes
    assert direct == ("cuda:direct", each or f"{most} bytes; a kernel of few programs is faster up to {most}")
    assert engines == (("cuda:pitched", "long rows") if each is None else ("cuda:pitched:memcpy-each", each))


def test_blocks_without_bytes_go_no_way(host_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from engines import plan_set

    stand_in(monkeypatch)
    spec = CacheTensorSpec(name="nothing", shape=(16, 0), dtype="uint8", row_ids=(0,))
    engine, _ = engine_and_oracle(plan_set([spec]), TorchBackend(), "cpu", (RECORD,))

    told = {(copy.path, copy.reason) for copy in engine.stats().groups[0].copies if copy.direction != "copy"}
    assert told == {("cuda:pitched", "blocks without bytes")}


def two_blocks_direct(runs: Runs) -> Choice:
    return Choice("pitched", (True,) * len(runs), 2 * sum(length * count for length, count in runs), "long rows")


def test_a_forced_way_without_room_fails(host_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from engines import plan_set, specs_of

    monkeypatch.setenv("CACHECORE_CUDA_SWAP", "staged")
    stand_in(monkeypatch, FullRing)

    with pytest.raises(AllocationError, match="no room for slots"):
        engine_and_oracle(plan_set(specs_of()), TorchBackend(), "cpu", (RECORD,))
