from __future__ import annotations

import pytest
from sleepers import filled, rows

from cachecore import ByteBackend


class Stuck(ByteBackend):
    """One call of ``free`` gives the memory back and then fails."""

    fail_at: int | None = None

    def free(self, allocation):
        super().free(allocation)
        if self.fail_at is not None:
            self.fail_at -= 1
            if self.fail_at < 0:
                self.fail_at = None
                raise self.error

    error: BaseException = OSError("the host does not answer")


@pytest.mark.parametrize("error", [OSError("the host does not answer"), KeyboardInterrupt()])
@pytest.mark.parametrize("fail_at", range(3))
def test_kept_contents_that_cannot_be_given_back_leave_it_awake_with_them(fail_at, error):
    # one allocation of kept contents for each of three groups
    backend = Stuck()
    engine = filled(backend)
    before, awake = rows(engine), backend.taken_nbytes
    engine.sleep()
    backend.fail_at, backend.error = fail_at, error

    with pytest.raises(type(error)):
        engine.wake()

    assert (rows(engine), engine.sleep_level, backend.taken_nbytes) == (before, 0, awake)
    assert sum(group.saved_nbytes for group in engine.stats().groups) == 0
    engine.wake()
    assert (rows(engine), backend.taken_nbytes) == (before, awake)


@pytest.mark.parametrize("fail_at", range(9))
@pytest.mark.parametrize("level", [1, 2])
def test_a_close_while_asleep_gives_all_back_whatever_fails(level, fail_at):
    # kept contents of three groups, then their host tiers; what was released is freed once more
    backend = Stuck()
    engine = filled(backend)
    engine.sleep(level)
    backend.fail_at = fail_at

    if fail_at < (9 if level == 1 else 6):
        with pytest.raises(OSError, match="does not answer"):
            engine.close()
    else:
        engine.close()

    assert backend.taken_nbytes == 0


@pytest.mark.parametrize("fail_at", range(3))
def test_level_2_after_1_drops_everything_whatever_fails(fail_at):
    backend = Stuck()
    engine = filled(backend)
    engine.sleep(2)
    dropped = backend.taken_nbytes
    engine.wake()
    engine.sleep(1)
    backend.fail_at = fail_at

    with pytest.raises(OSError, match="does not answer"):
        engine.sleep(2)

    assert (backend.taken_nbytes, engine.sleep_level) == (dropped, 2)
