"""How many NVIDIA devices there are, asked of NVIDIA's management library: no context is made."""

from __future__ import annotations

import ctypes
import sys

import torch

__all__ = ["nvidia_device_count"]


def nvidia_device_count() -> int | str:
    """The number of NVIDIA devices torch may use, or the reason why there is none.

    Another vendor's torch may call its device ``cuda`` and count devices; only NVIDIA's driver brings NVML.
    """
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return f"there is no {name}, so no NVIDIA driver is installed"
    code = library.nvmlInit_v2()
    if code:
        return f"the NVIDIA driver does not answer (nvmlInit failed with {code})"
    found = ctypes.c_uint(0)
    code = library.nvmlDeviceGetCount_v2(ctypes.byref(found))
    library.nvmlShutdown()
    if code or not found.value:
        return f"the NVIDIA driver finds no device (code {code})"
    return torch.cuda.device_count() or "CUDA_VISIBLE_DEVICES hides every NVIDIA device from torch"
