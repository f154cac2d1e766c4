"""The examples in the core's docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import cachecore

NAMES = [
    module.name
    for module in pkgutil.walk_packages(cachecore.__path__, "cachecore.")
    if not module.name.endswith("__main__") and not module.name.startswith("cachecore.testing")
]


@pytest.mark.parametrize("name", NAMES)
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in NAMES) >= 5
