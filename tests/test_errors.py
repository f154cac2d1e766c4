from __future__ import annotations

import copy
import pickle

import pytest

from cachecore import errors

BUILTINS = {
    "PlanError": ValueError,
    "LayoutError": ValueError,
    "BlockIndexError": IndexError,
    "BlockPairsError": ValueError,
    "AllocationError": MemoryError,
    "CacheLookupError": KeyError,
    "AgreementError": RuntimeError,
    "MigrationError": ValueError,
    "EngineStateError": RuntimeError,
    "PluginError": RuntimeError,
    "NoBackendError": LookupError,
}


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_error_is_caught_as_its_builtin(name, builtin):
    with pytest.raises(builtin) as caught:
        raise getattr(errors, name)("no room")

    assert isinstance(caught.value, errors.CacheCoreError)


def test_no_error_is_left_out():
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.CacheCoreError)
    }

    assert found - {"CacheCoreError"} == set(BUILTINS)


def test_error_keeps_its_values_as_attributes():
    error = errors.AllocationError("2 bytes needed, 1 is free", needed_nbytes=2, free_nbytes=1)

    assert (error.needed_nbytes, error.free_nbytes) == (2, 1)


@pytest.mark.parametrize("name", BUILTINS)
def test_message_is_what_is_printed(name):
    # KeyError would print the repr of its argument, with quotes.
    assert str(getattr(errors, name)("cache 'k' does not exist")) == "cache 'k' does not exist"


@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_error_crosses_a_process_with_its_values(duplicate):
    error = duplicate(errors.BlockIndexError("block 7 is out of range", block=7, limit=4))

    assert (str(error), error.block, error.limit) == ("block 7 is out of range", 7, 4)
