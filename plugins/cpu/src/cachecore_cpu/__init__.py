"""cachecore on CPU: torch memory, with block copies and swaps at memory speed.

:class:`CpuBackend` is a :class:`~cachecore_torch_default.TorchBackend` whose copies are its own.
Importing this package imports no torch; the first use of a name that needs it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachecore_cpu.backend import CpuBackend
    from cachecore_cpu.block_copy import CpuBlockCopy

__version__ = "0.1.0"

__all__ = ["CpuBackend", "CpuBlockCopy"]

_MODULES = {"CpuBackend": "backend", "CpuBlockCopy": "block_copy"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
