from __future__ import annotations

import threading

import pytest
from held_copies import HeldCopies
from row_oracle import RowOracle
from samples import kv_plan

from cachecore import (
    AllocationError,
    BlockCacheGeometry,
    BlockCopyInfo,
    BlockPairs,
    ByteBackend,
    DeviceSpec,
    PluginError,
)
from cachecore.reference import BYTE_COPY
from cachecore.transfer import ByteCopy, block_segments, resolve_copy

NULL = DeviceSpec("null")
PLAN = kv_plan(geometry=BlockCacheGeometry(8, 4))


def resolved(*records, backend=None, src=NULL, dst=NULL):
    backend = backend or ByteBackend()
    ends = [(backend, backend.allocate(PLAN.layout, 4, device)) for device in (src, dst)]
    return resolve_copy(records, PLAN, *ends)


def record(name, priority, reason=None, build=ByteCopy):
    return BlockCopyInfo(name, priority, lambda src, dst: reason, build)


def test_the_best_record_that_serves_is_built():
    found = resolved(
        record("slow", 10), record("fast", 90, "needs peer access"), record("good", 50), record("never", 1)
    )

    assert (found.record, found.fallback) == ("good", False)
    assert found.passed_over == (("fast", "needs peer access"),)
    # a block: 2 rows * 2 pages * 512 bytes, padding included
    assert found.block_nbytes == 2048


@pytest.mark.parametrize("reverse", [False, True])
def test_the_order_of_records_decides_nothing(reverse):
    records = [record("a", 10), record("b", 30, "no"), record("c", 20)]

    found = resolved(*(reversed(records) if reverse else records))

    assert (found.record, found.passed_over) == ("c", (("b", "no"),))


def test_a_tie_names_both_and_the_way_out():
    with pytest.raises(
        PluginError, match=r"block copies 'a' and 'b' both serve host to npu with priority 50; disable one"
    ):
        resolved(record("b", 50), record("a", 50), record("c", 40), src=DeviceSpec("cpu"), dst=DeviceSpec("npu", 1))


def test_a_tie_below_the_winner_is_none():
    assert resolved(record("a", 50), record("b", 40), record("c", 40)).record == "a"


def test_a_tie_of_which_one_serves_is_none():
    assert resolved(record("a", 50, "not here"), record("b", 50)).record == "b"


def test_without_any_record_bytes_go_through_the_host_and_count_as_a_fallback():
    found = resolved(record("a", 50, "needs a stream"))

    assert (found.record, found.fallback, found.copy.path) == ("bytes", True, "bytes")
    assert found.passed_over == (("a", "needs a stream"),)


def test_memory_that_is_not_byte_addressable_has_no_fallback():
    class Nz(ByteBackend):
        name = "nz"

        def capabilities(self):
            return {**super().capabilities(), "byte_addressable": "NZ pages are tiled"}

    with pytest.raises(
        PluginError, match=r"no block copy serves null to null \(a: no\), and .* 'nz' .*NZ pages are tiled"
    ):
        resolved(record("a", 50, "no"), backend=Nz())
    assert resolved(record("own", 50), backend=Nz()).record == "own"


def test_a_probe_sees_both_sides():
    seen = []
    info = BlockCopyInfo("a", 50, lambda *sides: seen.extend(sides), ByteCopy)

    resolved(info, src=DeviceSpec("cpu"), dst=DeviceSpec("npu", 1))

    assert [(side.backend, side.memory_kind, str(side.device)) for side in seen] == [
        ("bytes", "host", "cpu"),
        ("bytes", "npu", "npu:1"),
    ]
    assert seen[0].layout == PLAN.layout


def test_a_probe_that_raises_is_passed_over_with_its_reason():
    def probe(src, dst):
        raise OSError("no such device")

    found = resolved(BlockCopyInfo("broken", 90, probe, ByteCopy), BYTE_COPY)

    assert (found.record, found.passed_over) == ("bytes", (("broken", "probe raised OSError: no such device"),))


def test_a_probe_that_hangs_is_passed_over_and_asked_once():
    forever = threading.Event()
    info = BlockCopyInfo("hangs", 90, lambda src, dst: forever.wait(), ByteCopy, probe_limit_s=0.05)

    found, again = resolved(info, BYTE_COPY), resolved(info, BYTE_COPY)
    forever.set()

    assert (found.record, found.passed_over) == ("bytes", (("hangs", "probe did not answer within 0.05 s"),))
    assert (again.record, again.passed_over) == (
        "bytes",
        (("hangs", "probe did not answer when it was asked before, and still hangs"),),
    )


@pytest.mark.parametrize("answer", [3, False, "", object()])
def test_a_probe_of_a_wrong_answer_is_passed_over(answer):
    ((name, reason),) = resolved(BlockCopyInfo("odd", 90, lambda src, dst: answer, ByteCopy)).passed_over

    assert name == "odd"
    assert reason.startswith(("probe returned ", "probe gave no reason"))


@pytest.mark.parametrize("built", [None, 3, ByteCopy])
def test_a_builder_must_return_a_copy(built):
    with pytest.raises(PluginError, match=r"block copy 'a': build\(\) returned .*, which is no BlockCacheCopy"):
        resolved(record("a", 50, build=lambda context: built))


@pytest.mark.parametrize("error", [SystemExit(3), RuntimeError("no kernel"), GeneratorExit("x")])
def test_a_builder_that_raises_is_named(error):
    def build(context):
        raise error

    with pytest.raises(PluginError, match=rf"block copy 'a': build\(\) raised {type(error).__name__}: ") as refused:
        resolved(record("a", 50, build=build))

    assert refused.value.__cause__ is error


@pytest.mark.parametrize("error", [AllocationError("no workspace"), KeyboardInterrupt()])
def test_a_builder_without_memory_says_so_in_its_own_words(error):
    def build(context):
        raise error

    with pytest.raises(type(error)) as refused:
        resolved(record("a", 50, build=build))

    assert refused.value is error


def test_a_backend_whose_capabilities_are_none_is_named():
    broken = type("Broken", (ByteBackend,), {"capabilities": lambda self: None})()

    with pytest.raises(PluginError, match=r"backend 'bytes': capabilities\(\) returned None; expected a mapping"):
        resolved(record("a", 50, "no"), backend=broken)


def test_a_builder_gets_both_allocations_and_their_blocks():
    built = []
    backend = ByteBackend()
    device = backend.allocate(PLAN.layout, PLAN.num_entries(4), NULL)
    host = backend.allocate(PLAN.host_layout, PLAN.num_entries(3, host=True), DeviceSpec("cpu"))

    def build(context):
        built.append(context)
        return ByteCopy(context)

    resolve_copy([record("a", 50, build=build)], PLAN, (backend, device), (backend, host))

    (context,) = built
    assert (context.src, context.dst) == (device, host)
    assert (context.num_src_blocks, context.num_dst_blocks) == (4, 3)
    assert context.segments == block_segments(PLAN.layout, 8, PLAN.host_layout, 3, 2)


def test_the_byte_copy_waits_for_what_comes_first():
    backend = ByteBackend()
    device = RowOracle(PLAN, backend.allocate(PLAN.layout, PLAN.num_entries(3), NULL))
    device.fill(5)
    held = HeldCopies()
    ends = (backend, device.allocation), (backend, device.allocation)
    first = resolve_copy([held.info], PLAN, *ends).copy(BlockPairs([0], [1]))
    before = device.read([0])

    done = resolve_copy([BYTE_COPY], PLAN, *ends).copy(BlockPairs([1], [2]), [first])

    assert done.done()
    assert [device.read([2])[spec, row, 2, page] for spec, row, _, page in before] == list(before.values())
