"""A backend for the CPU whose layout has one pool for each band of four layers. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore_torch_default.plugin import probe

from banded_layout.policy import BandedPolicy
from cachecore import BackendInfo, CacheBackend, LayoutPolicy, hookimpl

PRIORITY = 20
"""Ahead of torch-default, which it stands on."""


def load_policy() -> LayoutPolicy:
    """Bands, also on machines without torch."""
    return BandedPolicy()


def load() -> CacheBackend[Any]:
    """Torch-default's memory and views under this policy."""
    from cachecore_torch_default import TorchBackend

    class BandedBackend(TorchBackend):
        name = "banded"

    return BandedBackend(BandedPolicy())


@hookimpl
def cachecore_register_backends() -> Sequence[BackendInfo]:
    """One, for the CPU."""
    return [BackendInfo("banded", ("cpu",), PRIORITY, probe, load_policy, load)]
