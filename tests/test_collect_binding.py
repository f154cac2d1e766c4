from __future__ import annotations

import pytest
from samples import Operator, request

from cachecore import (
    BlockCacheBinding,
    BlockCacheGeometry,
    BlockCacheRequestContext,
    CollectedCaches,
    collect,
)

CONTEXT = BlockCacheRequestContext({"full": BlockCacheGeometry(4)})


class Failing(Operator):
    """Refuses its rows until told otherwise; like much code, it does so whatever it is given."""

    broken = True

    def bind_block_caches(self, bindings):
        if self.broken:
            raise RuntimeError("kernel is not compiled")
        super().bind_block_caches(bindings)


def bound(*operators):
    return [operator.block_cache_bindings for operator in operators]


def test_nothing_is_bound_until_asked():
    operator = Operator(request())

    assert isinstance(collect([operator], CONTEXT), CollectedCaches)
    assert operator.block_cache_bindings == ()


def test_binding_is_all_or_none():
    # W23: a failure midway left earlier modules bound.
    operators = [Operator(request()), Operator(request()), Failing(request()), Operator(request())]

    with pytest.raises(RuntimeError, match=r"kernel is not compiled"):
        collect(operators, CONTEXT).bind()

    assert bound(*operators) == [(), (), (), ()]


def test_an_operator_that_fails_half_way_is_restored_too():
    class Half(Operator):
        def bind_block_caches(self, bindings):
            super().bind_block_caches(bindings)
            if bindings:
                raise RuntimeError("no workspace")

    half = Half(request())

    with pytest.raises(RuntimeError, match=r"no workspace"):
        collect([half], CONTEXT).bind()

    assert half.block_cache_bindings == ()


def test_a_failed_rebinding_gives_the_earlier_rows_back():
    earlier, failing = Operator(request()), Failing(request())
    failing.broken = False
    collect([earlier, failing], CONTEXT).bind()
    failing.broken = True

    with pytest.raises(RuntimeError):
        collect([object(), Operator(request()), earlier, failing], CONTEXT).bind()

    assert bound(earlier, failing) == [(BlockCacheBinding("index", 0),), (BlockCacheBinding("index", 1),)]


class MuteError(Exception):
    """Cannot be shown."""

    def __repr__(self):
        raise SystemExit("no words")


@pytest.mark.parametrize("error", [SystemExit("enough"), KeyboardInterrupt(), MuteError()])
def test_whatever_one_raises_on_the_way_back_the_others_are_restored(error):
    class Worse(Operator):
        def bind_block_caches(self, bindings):
            if not bindings:
                raise error
            super().bind_block_caches(bindings)

    first, worse = Operator(request()), Worse(request())

    with pytest.raises(RuntimeError, match=r"kernel is not compiled") as caught:
        collect([first, worse, Failing(request())], CONTEXT).bind()

    assert first.block_cache_bindings == ()
    assert any("Worse" in note and type(error).__name__ in note for note in caught.value.__notes__)


def test_an_operator_that_cannot_be_restored_is_named():
    class Worse(Operator):
        def bind_block_caches(self, bindings):
            if not bindings:
                raise KeyError("cannot go back")
            super().bind_block_caches(bindings)

    first, worse = Operator(request()), Worse(request())

    with pytest.raises(RuntimeError, match=r"kernel is not compiled") as caught:
        collect([first, worse, Failing(request())], CONTEXT).bind()

    assert first.block_cache_bindings == ()
    assert any("Worse" in note and "cannot go back" in note for note in caught.value.__notes__)
