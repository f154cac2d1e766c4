"""cachecore on any torch device: memory, views and block copies through the device's own torch module.

:class:`TorchBackend` is public API. A vendor whose device has a torch build subclasses it, overrides
what differs (a layout policy, a faster copy, pinned memory) and announces the result with a higher
priority. ``TorchCacheEngine`` is ``CacheEngine[Tensor]``: its views are typed as tensors.

Importing this package imports no torch; the first use of a name that needs it does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachecore_torch_default.backend import TorchBackend, torch_device
    from cachecore_torch_default.block_copy import GatherScatterCopy, check_device_ids
    from cachecore_torch_default.completion import completion_of_current_stream, completion_of_stream
    from cachecore_torch_default.distributed import TorchCommunicator
    from cachecore_torch_default.engine import TorchCacheEngine
    from cachecore_torch_default.memory import device_memory
    from cachecore_torch_default.pinned import pinned_refusal, upload
    from cachecore_torch_default.segments import (
        GroupDim,
        SegmentGroup,
        fold_segments,
        group_tensors,
        group_word_nbytes,
        word_tensor,
    )
    from cachecore_torch_default.swap import StagedSwap

__version__ = "0.1.0"

__all__ = [
    "GatherScatterCopy",
    "GroupDim",
    "SegmentGroup",
    "StagedSwap",
    "TorchBackend",
    "TorchCacheEngine",
    "TorchCommunicator",
    "check_device_ids",
    "completion_of_current_stream",
    "completion_of_stream",
    "device_memory",
    "fold_segments",
    "group_tensors",
    "group_word_nbytes",
    "pinned_refusal",
    "torch_device",
    "upload",
    "word_tensor",
]

_MODULES = {
    "GatherScatterCopy": "block_copy",
    "StagedSwap": "swap",
    "TorchBackend": "backend",
    "TorchCacheEngine": "engine",
    "TorchCommunicator": "distributed",
    "check_device_ids": "block_copy",
    "completion_of_current_stream": "completion",
    "completion_of_stream": "completion",
    "device_memory": "memory",
    "pinned_refusal": "pinned",
    "torch_device": "backend",
    "upload": "pinned",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'segments')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
