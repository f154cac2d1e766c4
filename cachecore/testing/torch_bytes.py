"""Bytes into tensors and out of them, bit for bit, for every dtype."""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

__all__ = ["download", "synchronize", "upload"]

torch: Any = import_module("torch")  # by name: the core type-checks where no torch is installed


def upload(data: bytes, like: Any) -> Any:
    """Bytes as a dense tensor of the dtype, shape and device of ``like``."""
    if not data:
        return torch.empty(tuple(like.shape), dtype=like.dtype, device=like.device)
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(like.device)
    return flat.view(like.dtype).view(tuple(like.shape))


def download(tensor: Any) -> bytes:
    """The dense bytes of a tensor."""
    if not tensor.numel():
        return b""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8).cpu()
    return bytes((ctypes.c_char * flat.numel()).from_address(flat.data_ptr()))


def synchronize(device: Any) -> None:
    """Wait for all work on a device, which need not be the current one."""
    if device.type == "cpu":
        return
    module = torch.get_device_module(device.type)
    if device.index is not None and hasattr(module, "current_stream"):
        module.synchronize(device)
    else:
        module.synchronize()
