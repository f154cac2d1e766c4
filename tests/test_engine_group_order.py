from __future__ import annotations

import pytest
from opened_groups import held_group, opened_group

from cachecore import ByteBackend


def test_host_blocks_are_in_flight_until_their_transfer_is_done():
    group, _, _, copies = held_group()

    group.swap_out([(0, 2), (1, 0)])
    group.swap_in([(1, 3)])

    assert group.host_blocks_in_flight() == {0, 1, 2}
    copies.queued[0].finish()
    assert group.host_blocks_in_flight() == {1}
    copies.queued[1].finish()
    assert group.host_blocks_in_flight() == frozenset()


def test_a_transfer_comes_after_the_one_that_still_touches_its_host_block():
    group, _, _, copies = held_group()

    first = group.swap_out([(0, 0), (1, 1)])
    second = group.swap_out([(2, 2)])
    third = group.swap_in([(0, 3), (1, 2)])
    fourth = group.swap_out([(1, 0), (3, 2)])

    assert [work.after for work in copies.queued] == [(), (), (first,), (third, second)]
    fourth.synchronize()
    assert all(work.done() for work in (first, second, third))


def test_a_transfer_that_is_done_is_not_waited_for():
    group, _, _, copies = held_group()

    group.swap_out([(0, 0)]).synchronize()
    group.swap_in([(0, 1)])

    assert copies.queued[1].after == ()


def test_a_transfer_that_is_done_before_an_earlier_one_is_not_waited_for():
    group, _, _, copies = held_group()
    first, second = group.swap_out([(0, 0)]), group.swap_out([(1, 1)])
    copies.queued[1].finish()

    group.swap_in([(1, 2), (0, 3)])

    assert second.done()
    assert copies.queued[2].after == (first,)


def test_a_transfer_that_cannot_tell_is_a_matter_of_its_own_blocks(monkeypatch):
    group, _, _, copies = held_group()
    group.swap_out([(0, 0)])
    second = group.swap_out([(1, 1)])

    def lost():
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(copies.queued[0], "done", lost)
    group.swap_in([(1, 2)])

    assert copies.queued[2].after == (second,)
    with pytest.raises(RuntimeError, match="the device is gone"):
        group.swap_in([(0, 3)])


def test_a_device_copy_touches_no_host_block():
    group, _, _, copies = held_group()

    group.swap_out([(0, 0)])
    group.copy([(1, 2)])

    assert copies.queued[1].after == ()
    assert group.host_blocks_in_flight() == {0}


def test_swap_out_and_in_at_once_keep_the_bytes():
    group, device, _, copies = held_group()
    before = device.read([0])

    group.swap_out([(0, 1)])
    group.swap_in([(1, 3)]).synchronize()

    assert len(copies.queued) == 2
    assert device.read([3]) == {(spec, row, 3, page): held for (spec, row, _, page), held in before.items()}


def test_free_waits_for_transfers_and_gives_both_tiers_back():
    backend = ByteBackend()
    group, _, _, copies = held_group(backend=backend)
    group.swap_out([(0, 0), (1, 1)])
    group.swap_in([(2, 3)])

    group.free()

    assert all(work.finished for work in copies.queued)
    assert backend.taken_nbytes == 0


def test_a_failed_transfer_keeps_neither_memory_nor_other_transfers_running():
    backend = ByteBackend()
    group, _, _, copies = held_group(backend=backend)
    for host_block in range(3):
        group.swap_out([(0, host_block)])
    copies.queued[0].failure = RuntimeError("transfer 0 failed")
    copies.queued[1].failure = RuntimeError("transfer 1 failed")

    with pytest.raises(RuntimeError, match=r"transfer 0 failed"):
        group.free()

    assert copies.queued[2].finished  # before its memory went
    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("able", [True, False])
def test_the_host_tier_is_pinned_where_the_backend_can(able):
    class Pinning(ByteBackend):
        asked: tuple = ()

        def capabilities(self):
            return {**super().capabilities(), "pinned_host": None if able else "no"}

        def allocate(self, layout, num_entries, device, *, pinned=False):
            self.asked = (*self.asked, (str(device), pinned))
            return super().allocate(layout, num_entries, device, pinned=pinned)

    backend = Pinning()
    opened_group(backend=backend)

    assert backend.asked == (("null", False), ("cpu", able))


def test_the_host_tier_is_taken_only_when_asked_for():
    backend = ByteBackend()

    group, _, _ = opened_group(num_host_blocks=0, backend=backend)

    # 4 blocks of 2 layers * 2 pages * 512 bytes
    assert (group.host, backend.taken_nbytes) == (None, 4 * 2048)
    assert [copy.direction for copy in group.stats().copies] == ["copy"]
