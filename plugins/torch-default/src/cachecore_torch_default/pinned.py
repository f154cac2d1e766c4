"""Whether torch can page-lock host memory for a device: asked by trying it, since no module of torch tells."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

__all__ = ["pinned_refusal", "upload"]


@cache
def pinned_refusal(device_type: str) -> str | None:
    """None when torch page-locks host memory for ``device_type``, else why not; tried once, with a few bytes.

    torch locks pages for its one accelerator, whatever device they are meant for.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type != device_type:
        return f"torch locks pages for {accelerator.type if accelerator else 'no device'} here, not for {device_type}"
    try:
        locked = torch.empty(8, dtype=torch.uint8, pin_memory=True)
        if locked.is_pinned():
            return None
        reason = "what it gives is not page-locked"
    except RuntimeError as error:  # NotImplementedError, torch.AcceleratorError and torch.OutOfMemoryError are such
        reason = str(error).partition("\n")[0]
    return f"torch cannot lock pages for {device_type}: {reason}"


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Host values on ``device``; the host waits for earlier work only where there is no page-locked memory.

    An upload from any other memory may synchronise the stream.
    """
    if device.type == "cpu":
        return values
    if pinned_refusal(device.type) is None:
        values = values.pin_memory()
    return values.to(device, non_blocking=True)
