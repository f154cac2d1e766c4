from __future__ import annotations

from threading import Barrier, Thread

import pytest

from cachecore.in_flight import InFlight


class Work:
    def __init__(self):
        self.finished = False
        self.num_asked = 0

    def wait(self, stream=None):
        pass

    def synchronize(self):
        self.finished = True

    def done(self):
        self.num_asked += 1
        return self.finished


class Lost(Work):
    def done(self):
        raise RuntimeError("the device is gone")


def test_what_is_done_is_not_looked_up_by_block():
    flying = InFlight(4)
    works = [Work() for _ in range(3)]
    for block, work in enumerate(works):
        flying.add([block], work)
        work.finished = True

    assert flying.earlier([0, 1, 2]) == []
    assert [work.num_asked for work in works] == [1, 1, 1]
    assert flying.earlier([0, 1, 2]) == []
    assert [work.num_asked for work in works] == [1, 1, 1]


@pytest.mark.parametrize("front", [Work, Lost])
def test_behind_one_that_is_never_done_no_more_is_kept_than_there_are_blocks(front):
    flying = InFlight(4)
    flying.add([0], front())
    for _ in range(100):
        work = Work()
        assert flying.earlier([1]) == []
        flying.add([1], work)
        work.finished = True

    assert len(flying._queue) <= 2 * 4
    last = Work()
    flying.add([1], last)
    assert flying.earlier([1]) == [last]


def test_two_threads_that_find_one_done_drop_it_once():
    flying, barrier = InFlight(4), Barrier(2)

    class Met(Work):
        def done(self):
            barrier.wait(20)
            return True

    under_way = Work()
    flying.add([0], Met())
    flying.add([1], under_way)
    threads = [Thread(target=flying.earlier, args=([2 + number],)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert flying.earlier([1]) == [under_way]


def test_a_completion_may_ask_back():
    flying = InFlight(4)

    class Curious(Work):
        def done(self):
            if not self.finished:
                self.finished = True
                assert flying.blocks() == frozenset()
            return True

    flying.add([0], Curious())

    assert flying.earlier([0]) == []


def test_all_that_are_waited_for():
    flying = InFlight(4)
    first, second = Work(), Work()
    flying.add([0, 1], first)
    flying.add([1, 2], second)

    assert flying.blocks() == {0, 1, 2}
    assert flying.works() == [first, second]
    flying.clear()
    assert (flying.blocks(), flying.works(), flying.earlier([0, 1, 2])) == (frozenset(), [], [])
