"""Memory and views of torch-default."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from cachecore_torch_default import TorchBackend, backend, pinned_refusal, torch_device
from cachecore_torch_default.memory import host_memory
from hypothesis import given
from hypothesis import strategies as st

from cachecore import (
    AllocationError,
    BlockCacheGeometry,
    BlockIndexError,
    CacheLayout,
    CacheTensorSpec,
    DeviceSpec,
    EngineStateError,
    LayoutError,
    PlanError,
    PoolSpec,
    StandardLayoutPolicy,
    plan_from_specs,
)
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout

CPU = DeviceSpec("cpu")


def kv(dtype: str = "bfloat16", shape: tuple[int, ...] = (2, 3), rows: int = 2) -> list[CacheTensorSpec]:
    return [CacheTensorSpec(name=name, shape=shape, dtype=dtype, alignment=16, row_ids=range(rows)) for name in "kv"]


def test_views_alias_the_pool_at_the_offsets_of_the_layout(device: DeviceSpec) -> None:
    specs = kv()
    layout = packed_layout(specs)
    torch_default = TorchBackend()

    allocation = torch_default.allocate(layout, 5, device)

    v = torch_default.view(allocation, 1, specs[1])
    row = torch_default.row_view(allocation, 1, specs[1], 1)
    # 2*3 bfloat16 are 12 bytes, aligned to 16: k at 0, v at 16, entries 32 bytes apart, rows 5*32.
    assert v is not None
    assert (v.shape, v.dtype, v.stride()) == ((2, 5, 2, 3), torch.bfloat16, (80, 16, 3, 1))
    assert row.data_ptr() - allocation.pools[0].data_ptr() == 5 * 32 + 16
    row[4] = 1.0
    assert torch.equal(v[1, 4].cpu(), torch.ones(2, 3, dtype=torch.bfloat16))
    assert allocation.pools[0].view(torch.int16).count_nonzero() == 6


def test_a_negative_count_is_refused_before_torch_is_asked(device: DeviceSpec) -> None:
    with pytest.raises(LayoutError, match="num_entries is -1; expected zero or more"):
        TorchBackend().allocate(packed_layout(kv()), -1, device)


def test_a_whole_block_entry_has_an_axis_for_its_pages(device: DeviceSpec) -> None:
    specs = kv("uint8", (5,))
    layout = block_major_layout(specs, 3)
    torch_default = TorchBackend()

    allocation = torch_default.allocate(layout, 4, device)

    row = torch_default.row_view(allocation, 1, specs[1], 0)
    assert row.shape == (4, 3, 5)
    # Rows are 15 bytes aligned to 16, so v's first row starts at 32; entries are 64 bytes apart, pages 5.
    assert row.stride() == (64, 5, 1)
    assert row.data_ptr() - allocation.pools[0].data_ptr() == 32


def test_fresh_memory_is_zero_aligned_and_exactly_what_is_reserved(device: DeviceSpec) -> None:
    layout = CacheLayout("two", (PoolSpec(2, 24, 4096), PoolSpec(1, 5, 512), PoolSpec(3, 0)), ())
    torch_default = TorchBackend()

    allocation = torch_default.allocate(layout, 7, device)

    assert sum(buffer.numel() for buffer in allocation.buffers) == layout.reserved_nbytes(7)
    assert [pool.shape for pool in allocation.pools] == [(2, 7, 24), (1, 7, 5), (3, 7, 0)]
    assert not any(pool.any() for pool in allocation.pools)
    assert [pool.data_ptr() % base for pool, base in zip(allocation.pools, (4096, 512), strict=False)] == [0, 0]
    regions = torch_default.regions(allocation)
    assert [(region.pool, region.nbytes) for region in regions] == [(0, 2 * 7 * 24), (1, 35)]
    assert allocation.memory_kind == ("host" if device.type == "cpu" else device.type)


def test_a_spec_of_zero_bytes_has_an_empty_view_of_the_right_shape(device: DeviceSpec) -> None:
    spec = CacheTensorSpec(name="v", shape=(4, 0), dtype="bfloat16", row_ids=(0, 1))
    plan = plan_from_specs([spec], BlockCacheGeometry(4), StandardLayoutPolicy())
    torch_default = TorchBackend()

    allocation = torch_default.allocate(plan.layout, 3, device)

    view = torch_default.view(allocation, 0, spec)
    assert view is not None
    assert (view.shape, view.dtype) == ((2, 3, 4, 0), torch.bfloat16)
    assert torch_default.row_view(allocation, 0, spec, 1).shape == (3, 4, 0)
    assert torch_default.regions(allocation) == ()


def test_zero_entries_is_a_legal_allocation(device: DeviceSpec) -> None:
    specs = kv()
    torch_default = TorchBackend()

    allocation = torch_default.allocate(packed_layout(specs), 0, device)

    assert torch_default.row_view(allocation, 0, specs[0], 1).shape == (0, 2, 3)
    torch_default.zero(allocation, []).synchronize()


def test_zero_clears_whole_entries_and_nothing_else(device: DeviceSpec) -> None:
    torch_default = TorchBackend()
    allocation = torch_default.allocate(packed_layout(kv()), 6, device)
    allocation.pools[0].fill_(9)

    torch_default.zero(allocation, [4, 1, 2]).synchronize()

    assert allocation.pools[0].sum(dim=(0, 2)).tolist() == [576, 0, 0, 576, 0, 576]  # 2 rows * 32 bytes * 9
    with pytest.raises(BlockIndexError, match="entry 6"):
        torch_default.zero(allocation, [0, 6])
    assert allocation.pools[0][0, 0, 0] == 9


def test_read_and_write_reach_every_byte_and_no_other(device: DeviceSpec) -> None:
    torch_default = TorchBackend()
    allocation = torch_default.allocate(contiguous_layout(kv("uint8", (3,))), 2, device)

    torch_default.write(allocation, 1, 5, b"\x01\x02\x03")

    assert torch_default.read(allocation, 1, 0, 12) == bytes([0, 0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0])
    assert torch_default.read(allocation, 0, 3, 0) == b""
    for pool, offset, nbytes in ((2, 0, 1), (0, -1, 1), (0, 11, 2)):
        with pytest.raises(BlockIndexError):
            torch_default.read(allocation, pool, offset, nbytes)


def test_adopted_memory_is_used_in_place_and_not_owned(device: DeviceSpec) -> None:
    specs = kv("int8", (8,))
    layout = contiguous_layout(specs)
    torch_default = TorchBackend()
    arena = torch.zeros(10, dtype=torch.int64, device=torch_device(device))

    allocation = torch_default.adopt(arena, layout, 2)
    torch_default.row_view(allocation, 1, specs[1], 0)[1] = 1
    torch_default.free(allocation)

    # Two pools of 2 rows * 2 entries * 8 bytes: v's row 0, entry 1 is word 4 + 1.
    assert arena.tolist() == [0] * 5 + [0x0101010101010101] + [0] * 4
    with pytest.raises(AllocationError, match="56 bytes on"):
        torch_default.adopt(arena[:7], layout, 2)
    with pytest.raises(LayoutError, match="contiguous"):
        torch_default.adopt(arena[::2], layout, 1)
    with pytest.raises(TypeError, match="adopts a tensor"):
        torch_default.adopt(bytearray(100), layout, 1)  # type: ignore[arg-type]  # what is tested


def test_adopted_memory_that_is_misaligned_for_its_dtype_is_refused() -> None:
    specs = kv("float32", (2,))
    torch_default = TorchBackend()

    allocation = torch_default.adopt(torch.zeros(101, dtype=torch.uint8)[1:], contiguous_layout(specs), 2)

    with pytest.raises(LayoutError, match="multiple of the 4 bytes of float32"):
        torch_default.row_view(allocation, 0, specs[0], 0)


def test_freed_memory_cannot_be_used(device: DeviceSpec) -> None:
    specs = kv()
    torch_default = TorchBackend()
    allocation = torch_default.allocate(packed_layout(specs), 2, device)

    torch_default.free(allocation)
    torch_default.free(allocation)

    assert (allocation.buffers, allocation.pools) == ((), ())
    with pytest.raises(EngineStateError, match="freed"):
        torch_default.row_view(allocation, 0, specs[0], 0)
    with pytest.raises(EngineStateError, match="freed"):
        torch_default.read(allocation, 0, 0, 1)


def test_more_than_the_memory_is_refused_before_it_is_taken(device: DeviceSpec) -> None:
    torch_default = TorchBackend()
    layout = CacheLayout("huge", (PoolSpec(1, 1024), PoolSpec(1, 1 << 40)), ())

    with pytest.raises(AllocationError, match=r"pool 1 of layout 'huge' needs \d+ bytes for 9 entries on") as caught:
        torch_default.allocate(layout, 9, device)

    error = caught.value
    assert (error.pool, error.nbytes) == (1, 9 * (1 << 40))  # type: ignore[attr-defined]  # set by name
    assert 0 < error.free_nbytes < 9 << 40  # type: ignore[attr-defined]  # set by name
    assert error.device.partition(":")[0] == device.type  # type: ignore[attr-defined]  # set by name


def test_a_failed_pool_gives_back_the_pools_before_it() -> None:
    class SecondFails(TorchBackend):
        def __init__(self) -> None:
            super().__init__()
            self.taken: list[int] = []

        def take(self, nbytes: int, device: torch.device, *, pinned: bool) -> torch.Tensor:
            if self.taken:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nwith a trace below")
            buffer = super().take(nbytes, device, pinned=pinned)
            self.taken.append(buffer.untyped_storage()._weak_ref())
            return buffer

    torch_default = SecondFails()

    with pytest.raises(AllocationError, match=r"can't allocate memory\)"):
        torch_default.allocate(contiguous_layout(kv()), 4, CPU)

    assert torch.UntypedStorage._expired(torch_default.taken[0])


def test_memory_tells_free_and_total(device: DeviceSpec) -> None:
    free, total = TorchBackend().memory(device)

    assert 0 < free <= total


def test_host_memory_heeds_what_is_available_and_the_container_limit(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: 4000 kB\n")
    assert host_memory(tmp_path).free_nbytes == 4000 * 1024

    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("700000\n")
    (group / "memory.stat").write_text("anon 500000\ninactive_file 200000\n")
    assert host_memory(tmp_path).free_nbytes == 4000 * 1024

    (group / "memory.max").write_text("1500000\n")
    # 700,000 bytes count, of which 200,000 can be dropped: 1,500,000 - 500,000 are left.
    assert host_memory(tmp_path) == (1_000_000, 1_500_000)


def test_a_dtype_that_this_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = kv("float8_e8m0fnu")
    torch_default = TorchBackend()
    allocation = torch_default.allocate(packed_layout(specs), 1, CPU)
    monkeypatch.delattr(torch, "float8_e8m0fnu", raising=False)  # torch 2.6 has none

    with pytest.raises(PlanError, match="no dtype float8_e8m0fnu"):
        torch_default.row_view(allocation, 0, specs[0], 0)


def test_a_device_that_torch_lacks_is_named() -> None:
    with pytest.raises(EngineStateError, match="cannot use device 'warp:3'"):
        TorchBackend().allocate(packed_layout(kv()), 1, DeviceSpec("warp", 3))


def test_the_host_tier_is_pinned_where_the_device_has_pinned_memory(device: DeviceSpec) -> None:
    torch_default = TorchBackend()

    allocation = torch_default.allocate(packed_layout(kv()), 2, CPU, pinned=True)

    able = device.type != "cpu" and pinned_refusal(device.type) is None
    if device.type == "cpu" and torch.accelerator.is_available():
        pytest.skip("torch pins for the accelerator that is here")
    assert allocation.memory_kind == ("host:pinned" if able else "host")
    assert allocation.buffers[0].is_pinned() == able
    assert (torch_default.capabilities()["pinned_host"] is None) == able


def test_memory_that_cannot_be_pinned_is_told_with_the_reason() -> None:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = "no device" if accelerator is None else accelerator.type

    assert pinned_refusal("warp") == f"torch locks pages for {found} here, not for warp"


@pytest.mark.parametrize(("pinned", "remedy"), [(False, "enough bytes are free"), (True, "ulimit -l")])
def test_memory_that_is_refused_for_another_reason_says_so(pinned: bool, remedy: str) -> None:
    class Refuses(TorchBackend):
        def capabilities(self) -> dict[str, str | None]:
            return {"pinned_host": None}

        def take(self, nbytes: int, device: torch.device, *, pinned: bool) -> torch.Tensor:
            raise RuntimeError("the driver has gone away")

    with pytest.raises(AllocationError, match=f"the driver has gone away.*{remedy}"):
        Refuses().allocate(packed_layout(kv()), 2, CPU, pinned=pinned)


@given(entries=st.lists(st.integers(0, 20)))
def test_neighbours_cover_every_entry_once(entries: list[int]) -> None:
    ranges = list(backend.neighbours(entries))

    assert [entry for start, stop in ranges for entry in range(start, stop)] == sorted(set(entries))
    assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))
