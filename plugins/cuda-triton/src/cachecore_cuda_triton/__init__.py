"""cachecore on NVIDIA GPUs: block copies in one launch, swaps by copy engines beside the model.

Importing this package imports neither torch nor triton; the first use of a name that needs them does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachecore_cuda_triton.backend import CudaTritonBackend
    from cachecore_cuda_triton.block_copy import FusedBlockCopy
    from cachecore_cuda_triton.swap import CudaSwap

__version__ = "0.1.0"

__all__ = ["CudaSwap", "CudaTritonBackend", "FusedBlockCopy"]

_MODULES = {"CudaTritonBackend": "backend", "FusedBlockCopy": "block_copy", "CudaSwap": "swap"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
