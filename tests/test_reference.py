from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_oracle import RowOracle
from samples import kv_plan, layer_spec, plan_with
from strategies import plans

from cachecore import (
    AllocationError,
    BlockCacheGeometry,
    ByteBackend,
    CopySide,
    DeviceSpec,
    LayoutError,
    StandardLayoutPolicy,
)
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout
from cachecore.reference import BYTE_BACKEND, BYTE_COPY

NULL, CPU = DeviceSpec("null"), DeviceSpec("cpu")
PACKED = packed_layout([layer_spec("k_cache"), layer_spec("v_cache")])  # 1,024 bytes an entry


def test_an_allocation_is_zeroed_bytes_of_the_layouts_size():
    backend = ByteBackend()

    allocation = backend.allocate(PACKED, 3, NULL)

    assert [bytes(pool.pool) for pool in allocation.pools] == [bytes(3072)]
    assert [pool.shape for pool in allocation.pools] == [(2, 3, 512)]
    assert (allocation.memory_kind, allocation.owned, backend.taken_nbytes) == ("null", True, 3072)
    assert ByteBackend().allocate(PACKED, 1, CPU, pinned=True).memory_kind == "host"


def test_pools_alias_their_buffers():
    backend = ByteBackend()
    allocation = backend.allocate(PACKED, 1, NULL)

    allocation.buffers[0][5] = 77

    assert allocation.pools[0].pool[5] == 77


@pytest.mark.parametrize("num_entries", [0, 1, 5])
def test_free_gives_everything_back_once(num_entries):
    backend = ByteBackend(capacity_nbytes=1 << 20)
    other = backend.allocate(PACKED, 2, NULL)
    allocation = backend.allocate(PACKED, num_entries, NULL)

    backend.free(allocation)
    backend.free(allocation)

    assert (backend.taken_nbytes, allocation.freed, allocation.pools, allocation.buffers) == (2048, True, (), ())
    assert backend.memory(NULL) == ((1 << 20) - 2048, 1 << 20)
    assert not other.freed


def test_more_than_the_capacity_is_refused_and_takes_nothing():
    backend = ByteBackend(capacity_nbytes=3071)
    backend.allocate(PACKED, 1, NULL)

    with pytest.raises(
        AllocationError, match=r"3072 bytes of packed layout on null, but 2047 of 3071 are free"
    ) as caught:
        backend.allocate(PACKED, 3, NULL)

    assert (caught.value.needed_nbytes, caught.value.free_nbytes) == (3072, 2047)
    assert backend.taken_nbytes == 1024


def test_a_negative_count_is_refused():
    with pytest.raises(LayoutError, match=r"num_entries is -1"):
        ByteBackend().allocate(PACKED, -1, NULL)


def test_adopted_memory_is_used_and_not_owned():
    backend = ByteBackend()
    layout = contiguous_layout([layer_spec("k_cache"), layer_spec("v_cache", shape=(4,), dtype="uint8")])
    buffer = bytearray(2 * (2 * 128 + 2 * 4) + 100)  # two entries of both pools, and more

    allocation = backend.adopt(buffer, layout, 2)
    backend.write(allocation, 1, 0, b"\7" * 16)

    assert bytes(buffer[512:528]) == b"\7" * 16  # the second pool starts after 2 rows * 2 entries * 128 bytes
    assert buffer.count(7) == 16
    backend.free(allocation)
    assert (backend.taken_nbytes, allocation.owned) == (0, False)


@pytest.mark.parametrize(
    ("buffer", "told"), [(bytearray(3071), "a buffer of 3071 bytes cannot hold 3072"), (bytes(4000), r"\(read-only\)")]
)
def test_memory_that_does_not_suit_is_not_adopted(buffer, told):
    with pytest.raises(AllocationError, match=told):
        ByteBackend().adopt(buffer, PACKED, 3)


def test_zero_clears_the_entries_of_every_pool_and_nothing_else():
    backend = ByteBackend()
    layout = contiguous_layout([layer_spec("k_cache"), layer_spec("v_cache", shape=(4,), dtype="uint8")])
    allocation = backend.allocate(layout, 3, NULL)
    for pool in allocation.pools:
        pool.pool[:] = b"\1" * len(pool.pool)

    backend.zero(allocation, [0, 2])

    # entry 1 of both rows keeps its 128 and its 4 bytes
    one_row = bytes(128) + b"\1" * 128 + bytes(128)
    assert bytes(allocation.pools[0].pool) == one_row * 2
    assert bytes(allocation.pools[1].pool) == (bytes(4) + b"\1" * 4 + bytes(4)) * 2


def test_read_and_write_reach_the_bytes_of_one_pool():
    backend = ByteBackend()
    allocation = backend.allocate(PACKED, 3, NULL)

    backend.write(allocation, 0, 100, b"abc")

    assert backend.read(allocation, 0, 99, 5) == b"\0abc\0"
    assert allocation.pools[0].pool.tobytes().count(b"abc") == 1


def test_regions_are_the_pools_that_have_bytes():
    backend = ByteBackend()
    allocation = backend.allocate(contiguous_layout([layer_spec(shape=(4, 0)), layer_spec("v_cache")]), 3, NULL)

    # pool 0 is empty; pool 1 has 2 rows * 3 entries * 128 bytes
    assert [(region.pool, region.nbytes) for region in backend.regions(allocation)] == [(1, 768)]


def test_a_view_shows_rows_entries_and_payload():
    plan = kv_plan()
    backend = ByteBackend()
    allocation = backend.allocate(plan.layout, 3, NULL)

    assert backend.view(allocation, 1, plan.specs[1]).shape == (2, 3, 4, 2, 8)
    assert backend.row_view(allocation, 1, plan.specs[1], 1).shape == (3, 4, 2, 8)


def test_a_view_of_whole_blocks_shows_their_pages():
    plan = kv_plan(geometry=BlockCacheGeometry(16, 4))
    backend = ByteBackend()
    allocation = backend.allocate(plan.host_layout, 3, CPU)

    assert backend.view(allocation, 1, plan.specs[1]).shape == (2, 3, 4, 4, 2, 8)
    assert backend.row_view(allocation, 1, plan.specs[1], 1).shape == (3, 4, 4, 2, 8)


def test_unequally_spaced_rows_have_row_views_only():
    specs = [
        layer_spec("a", shape=(3,), dtype="uint8", alignment=1, row_ids=(0, 1, 2)),
        layer_spec("b", shape=(5,), dtype="uint8", alignment=1, row_ids=(0, 1)),
    ]
    ordered = block_major_layout(specs, 1)
    first, second, third = ordered.slices[0]
    plan = plan_with(specs, replace(ordered, slices=((first, third, second), ordered.slices[1])), ordered)
    backend = ByteBackend()
    allocation = backend.allocate(plan.layout, 2, NULL)

    assert backend.view(allocation, 0, specs[0]) is None
    assert backend.row_view(allocation, 0, specs[0], 2).shape == (2, 3)


def test_a_spec_of_zero_bytes_has_an_empty_view_of_the_right_shape():
    specs = [layer_spec(), layer_spec("v_cache", shape=(4, 1, 0))]
    plan = plan_with(specs, packed_layout(specs))
    backend = ByteBackend()
    allocation = backend.allocate(plan.layout, 3, NULL)

    assert backend.view(allocation, 1, specs[1]).shape == (2, 3, 4, 1, 0)
    assert backend.view(allocation, 1, specs[1]).tobytes() == b""


def test_frombytes_wants_every_byte():
    plan = kv_plan()
    backend = ByteBackend()
    row = backend.row_view(backend.allocate(plan.layout, 3, NULL), 0, plan.specs[0], 0)

    with pytest.raises(LayoutError, match=r"383 bytes for a tensor of 384"):
        row.frombytes(bytes(383))


@given(plans(), st.integers(0, 3), st.booleans(), st.integers(0, 1 << 30))
def test_row_views_show_the_bytes_that_the_layout_places(plan, num_blocks, host, seed):
    backend = ByteBackend()
    layout = plan.host_layout if host else plan.layout
    allocation = backend.allocate(layout, plan.num_entries(num_blocks, host=host), NULL)
    oracle = RowOracle(plan, allocation, host=host)
    oracle.fill(seed)
    held = oracle.read()

    for index, spec in enumerate(plan.specs):
        rows = [
            b"".join(held[key] for key in oracle.row_pages() if key[:2] == (index, row)) for row in range(spec.num_rows)
        ]
        whole = backend.view(allocation, index, spec)

        assert [backend.row_view(allocation, index, spec, row).tobytes() for row in range(spec.num_rows)] == rows
        assert whole is None or whole.tobytes() == b"".join(rows)


@given(plans(), st.integers(1, 3), st.booleans(), st.data())
def test_writing_through_a_row_view_changes_that_row_alone(plan, num_blocks, host, data):
    backend = ByteBackend()
    layout = plan.host_layout if host else plan.layout
    allocation = backend.allocate(layout, plan.num_entries(num_blocks, host=host), NULL)
    oracle = RowOracle(plan, allocation, host=host)
    oracle.fill(7)
    index = data.draw(st.integers(0, len(plan.specs) - 1))
    row = data.draw(st.integers(0, plan.specs[index].num_rows - 1))
    expected = oracle.read()
    nbytes = plan.specs[index].page_nbytes
    written = bytes(number % 251 for number in range(nbytes * num_blocks * plan.pages_per_unit))
    for number, key in enumerate(key for key in oracle.row_pages() if key[:2] == (index, row)):
        expected[key] = written[number * nbytes : (number + 1) * nbytes]

    backend.row_view(allocation, index, plan.specs[index], row).frombytes(written)

    assert oracle.read() == expected


@given(plans(), st.integers(1, 3), st.booleans())
def test_no_two_rows_overlap(plan, num_blocks, host):
    layout = plan.host_layout if host else plan.layout
    allocation = ByteBackend().allocate(layout, plan.num_entries(num_blocks, host=host), NULL)
    oracle = RowOracle(plan, allocation, host=host)
    taken = [bytearray(len(pool.pool)) for pool in allocation.pools]

    for key in oracle.row_pages():
        pool, start, nbytes = oracle.place(key)

        assert taken[pool][start : start + nbytes] == bytes(nbytes)  # inside the pool, and nobody's yet
        taken[pool][start : start + nbytes] = b"\1" * nbytes


def test_capabilities_give_a_reason_for_everything_that_is_missing():
    capabilities = ByteBackend().capabilities()

    assert set(capabilities) == {"pinned_host", "device_ids", "graph_capture", "async_copy", "byte_addressable"}
    assert capabilities["byte_addressable"] is None
    assert all(capabilities[name] for name in capabilities if name != "byte_addressable")


def test_the_null_device_is_announced_like_any_other():
    assert (BYTE_BACKEND.name, BYTE_BACKEND.device_types, BYTE_BACKEND.priority) == ("bytes", ("null",), 0)
    assert BYTE_BACKEND.probe(NULL) is None
    assert isinstance(BYTE_BACKEND.load(), ByteBackend)
    assert isinstance(BYTE_BACKEND.load_policy(), StandardLayoutPolicy)


@pytest.mark.parametrize(
    ("src", "dst", "serves"), [("bytes", "bytes", True), ("bytes", "cpu", False), ("cpu", "cpu", False)]
)
def test_the_byte_copy_serves_the_byte_backend_alone(src, dst, serves):
    sides = [CopySide(name, "null", NULL, PACKED) for name in (src, dst)]

    reason = BYTE_COPY.probe(*sides)

    assert (reason is None) is serves
    assert serves or reason == f"serves the byte backend alone, not {src} to {dst}"
