"""Ranges of virtual memory against a driver played in host memory."""

from __future__ import annotations

import ctypes

import pytest
from cachecore_cuda_triton import virtual_memory
from cachecore_cuda_triton.virtual_memory import VirtualRange, why_no_virtual_memory
from virtual_driver import PAGE, VirtualDriver

from cachecore import AllocationError, EngineStateError


def byte_at(address: int) -> int:
    return ctypes.c_ubyte.from_address(address).value


def test_structures_have_the_sizes_of_the_drivers_header() -> None:
    # CUmemAllocationProp: 4 + 4 + 8 + 8 + 8 bytes; CUmemAccessDesc: 8 + 4
    assert ctypes.sizeof(virtual_memory._Properties) == 32
    assert ctypes.sizeof(virtual_memory._Access) == 12
    assert (virtual_memory._Properties.win32.offset, virtual_memory._Properties.rdma.offset) == (16, 25)


@pytest.mark.parametrize(("nbytes", "pages"), [(1, 1), (PAGE, 1), (PAGE + 1, 2)])
def test_a_range_is_whole_pages_without_memory_at_first(nbytes: int, pages: int) -> None:
    driver = VirtualDriver()

    found = VirtualRange(nbytes, 0, driver=driver)

    assert (found.nbytes, found.page_nbytes, found.is_mapped, driver.taken) == (pages * PAGE, PAGE, False, 0)


def test_memory_comes_and_goes_at_one_address() -> None:
    driver = VirtualDriver()
    found = VirtualRange(3 * PAGE, 0, driver=driver)
    address = found.address

    for _ in range(20):
        found.map()
        found.map()
        assert (found.address, driver.taken, driver.accessible) == (address, 3 * PAGE, {address})
        assert byte_at(address) == 0xCD
        found.unmap()
        found.unmap()
        assert driver.taken == 0

    found.close()
    found.close()
    assert (driver.reserved, driver.mapped, driver.handles) == ({}, {}, {})


def test_closing_takes_the_memory_along() -> None:
    driver = VirtualDriver()
    found = VirtualRange(1, 0, driver=driver)
    found.map()

    found.close()

    assert (driver.taken, driver.reserved) == (0, {})


@pytest.mark.parametrize("able", [0, 1])
def test_memory_may_be_registered_for_rdma_where_the_device_can(able: int) -> None:
    driver = VirtualDriver()
    driver.attributes[110] = able

    VirtualRange(1, 0, driver=driver).map()

    assert driver.rdma == [able]


def test_memory_that_is_not_there_is_told_and_the_range_stays() -> None:
    driver = VirtualDriver(capacity=2 * PAGE)
    found = VirtualRange(2 * PAGE + 1, 0, driver=driver)

    with pytest.raises(AllocationError, match=f"no {3 * PAGE} bytes for device 0") as caught:
        found.map()

    assert caught.value.nbytes == 3 * PAGE
    assert (found.is_mapped, driver.taken) == (False, 0)
    driver.capacity = 3 * PAGE
    found.map()
    assert found.is_mapped


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_a_failed_call_keeps_no_memory_and_may_be_tried_again(call: str) -> None:
    driver = VirtualDriver()
    found = VirtualRange(1, 0, driver=driver)
    driver.fail = call

    with pytest.raises(EngineStateError, match=f"{call} of {PAGE} bytes failed with driver error 700"):
        found.map()

    assert (found.is_mapped, driver.taken, driver.mapped) == (False, 0, {})
    driver.fail = None
    found.map()
    assert driver.taken == PAGE


@pytest.mark.parametrize("call", ["cuMemGetAllocationGranularity", "cuMemAddressReserve"])
def test_a_range_that_cannot_be_reserved_is_told(call: str) -> None:
    driver = VirtualDriver()
    driver.fail = call

    with pytest.raises(EngineStateError, match=f"{call} of .* bytes failed with driver error 700"):
        VirtualRange(1, 0, driver=driver)

    assert driver.reserved == {}


def test_a_driver_that_can_has_no_reason_against() -> None:
    assert why_no_virtual_memory(VirtualDriver()) is None


def test_reasons_against_virtual_memory() -> None:
    class Old:
        """A driver of before."""

    stopped, unable = VirtualDriver(), VirtualDriver()
    stopped.fail = "cuInit"
    unable.attributes[102] = 0

    assert "no cuMemAddressFree" in (why_no_virtual_memory(Old()) or "")
    assert "cuInit failed with 700" in (why_no_virtual_memory(stopped) or "")
    assert "does not support" in (why_no_virtual_memory(unable) or "")


def test_a_machine_without_the_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library() -> None:
        raise EngineStateError("libcuda.so.1 cannot be loaded")

    monkeypatch.setattr(virtual_memory, "libcuda", no_library)
    virtual_memory._why_not.cache_clear()

    try:
        assert why_no_virtual_memory() == "libcuda.so.1 cannot be loaded"
    finally:
        virtual_memory._why_not.cache_clear()
