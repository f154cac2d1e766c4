from __future__ import annotations

import pytest
from held_copies import HeldCopies
from samples import COUNTS, HOST_COUNTS, kv_plan, open_bytes, three_groups

from cachecore import AllocationError, BlockCopyInfo, ByteBackend, PluginError
from cachecore.reference import BYTE_COPY


class Watched(ByteBackend):
    """Fails at the n-th allocation."""

    def __init__(self, fail_at=None, **more):
        super().__init__(**more)
        self.fail_at = fail_at
        self.num_allocations = 0

    def allocate(self, *given, **more):
        if self.num_allocations == self.fail_at:
            raise AllocationError(f"allocation {self.fail_at} failed")
        self.num_allocations += 1
        return super().allocate(*given, **more)


@pytest.mark.parametrize("fail_at", range(6))
def test_a_failed_allocation_keeps_nothing(fail_at):
    # three groups, two tiers each
    backend = Watched(fail_at)

    with pytest.raises(AllocationError, match=f"allocation {fail_at} failed"):
        open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    assert (backend.num_allocations, backend.taken_nbytes) == (fail_at, 0)


def test_six_allocations_are_all_there_are():
    backend = Watched(6)

    open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    assert backend.num_allocations == 6


@pytest.mark.parametrize("fail_at", range(9))
def test_a_failed_copy_builder_keeps_nothing(fail_at):
    # three directions in each of three groups
    built = []

    def build(context):
        if len(built) == fail_at:
            raise OSError("no stream")
        built.append(context)
        return BYTE_COPY.build(context)

    backend = ByteBackend()

    with pytest.raises(PluginError, match=r"no stream"):
        open_bytes(
            three_groups(),
            COUNTS,
            HOST_COUNTS,
            backend=backend,
            copies=[BlockCopyInfo("a", 1, lambda src, dst: None, build)],
        )

    assert (len(built), backend.taken_nbytes) == (fail_at, 0)


@pytest.mark.parametrize("fail_at", range(8))
def test_a_failed_view_keeps_nothing(fail_at):
    # K and V with two rows each in two groups, before the state
    class Blind(ByteBackend):
        seen = 0

        def row_view(self, *given):
            if self.seen == fail_at:
                raise OSError("no view")
            self.seen += 1
            return super().row_view(*given)

    backend = Blind()

    with pytest.raises(PluginError, match=r"backend 'bytes': row_view\(\) of cache '\w+' raised OSError: no view"):
        open_bytes(three_groups(), COUNTS, HOST_COUNTS, backend=backend)

    assert backend.taken_nbytes == 0


def test_a_tie_of_copies_keeps_nothing():
    backend = ByteBackend()

    with pytest.raises(PluginError, match=r"'a' and 'b' both serve"):
        open_bytes(kv_plan(), backend=backend, copies=[HeldCopies("a").info, HeldCopies("b").info])

    assert backend.taken_nbytes == 0


def test_what_cannot_fit_is_refused_before_anything_is_taken():
    backend = Watched(capacity_nbytes=4 * 1024 - 1)

    with pytest.raises(AllocationError, match=r"\(4,096 B\) needed .* \(4,095 B\) are there in null") as caught:
        open_bytes(kv_plan(), 4, backend=backend)

    assert (caught.value.longest_sequence, caught.value.fits) == (12, {"full": 3})
    assert backend.num_allocations == 0


def test_a_host_tier_that_cannot_fit_is_refused_before_anything_is_taken():
    backend = Watched(capacity_nbytes=4 * 1024)

    with pytest.raises(AllocationError, match=r"\(4,608 B\) needed .* \(4,096 B\) are there in the host"):
        open_bytes(kv_plan(), 4, 9, backend=backend)

    assert backend.num_allocations == 0


def test_on_a_cpu_both_tiers_share_one_memory():
    # 4 * 1,024 on the device and 2 * 512 on the host
    fits, short = Watched(capacity_nbytes=5120), Watched(capacity_nbytes=5119)

    assert open_bytes(kv_plan(), 4, 2, backend=fits, device="cpu").stats().device == "cpu"
    with pytest.raises(AllocationError, match=r"\(1,024 B\) needed .* but 1023 B are there in the host"):
        open_bytes(kv_plan(), 4, 2, backend=short, device="cpu")
    assert short.num_allocations == 0
