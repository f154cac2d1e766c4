from __future__ import annotations

import weakref
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
    flying, held = InFlight(4), front()
    flying.add([0], held)
    for _ in range(100):
        work = Work()
        assert flying.earlier([1]) == []
        flying.add([1], work)
        work.finished = True

    assert len(flying._queue) <= 2 * 4
    last = Work()
    flying.add([1], last)
    assert flying.earlier([1]) == [last]
    last.finished = True
    if front is Work:
        assert flying.earlier([0]) == [held]
    else:
        with pytest.raises(RuntimeError, match="the device is gone"):
            flying.earlier([0])


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


@pytest.mark.parametrize("ask", [lambda flying: flying.earlier([0]), lambda flying: flying.blocks()])
def test_a_completion_may_ask_back(ask):
    flying = InFlight(4)

    class Curious(Work):
        def done(self):
            if not self.finished:
                self.finished = True
                assert flying.blocks() == frozenset()
                assert flying.earlier([0]) == []
            return True

    flying.add([0], Curious())

    assert not ask(flying)


def test_who_starts_while_blocks_are_told_is_not_forgotten():
    flying = InFlight(4)
    lock = flying._lock

    class Gate:
        """The lock, with a moment before it in which another thread runs."""

        def __enter__(self):
            flying._lock = lock
            flying.add([0], under_way)
            assert done() is not None, "its address is free for another completion, which would be taken for it"
            return lock.__enter__()

        def __exit__(self, *error):
            return lock.__exit__(*error)

    work, under_way = Work(), Work()
    work.finished = True
    done = weakref.ref(work)
    flying.add([0], work)
    flying.earlier([0])
    del work
    flying._lock = Gate()

    assert flying.blocks() == {0}
    assert flying.earlier([0]) == [under_way]


def test_all_that_are_waited_for():
    flying = InFlight(4)
    first, second = Work(), Work()
    flying.add([0, 1], first)
    flying.add([1, 2], second)

    assert flying.blocks() == {0, 1, 2}
    assert flying.works() == [first, second]
    flying.clear()
    assert not flying._queue
    assert (flying.blocks(), flying.works(), flying.earlier([0, 1, 2])) == (frozenset(), [], [])
