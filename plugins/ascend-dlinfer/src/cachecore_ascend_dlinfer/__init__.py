"""cachecore on the accelerators that dlinfer serves: Ascend (``npu``), Cambricon (``mlu``) and MetaX (``cuda``).

Importing this package imports neither torch nor a vendor's library; the first use of a name that needs
them does. What was never run on hardware is said by :meth:`DlinferBackend.capabilities` and the README.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachecore_ascend_dlinfer.backend import DlinferBackend
    from cachecore_ascend_dlinfer.policy import DlinferPolicy
    from cachecore_ascend_dlinfer.vendors import ASCEND, CAMB, MACA, SocFamily, Vendor, planned_soc

__version__ = "0.1.0"

__all__ = ["ASCEND", "CAMB", "MACA", "DlinferBackend", "DlinferPolicy", "SocFamily", "Vendor", "planned_soc"]

_MODULES = {"DlinferBackend": "backend", "DlinferPolicy": "policy"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'vendors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
