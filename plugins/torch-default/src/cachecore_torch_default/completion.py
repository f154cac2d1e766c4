"""When work on a torch stream is done."""

from __future__ import annotations

from typing import Any

import torch

from cachecore import COMPLETED, Completion

__all__ = ["completion_of_current_stream", "completion_of_stream"]


class StreamCompletion:
    """Work queued on ``stream``; the event is made when somebody asks, later work on the stream included.

    ``held`` keeps tensors alive until this object goes.
    """

    __slots__ = ("_event", "_held", "_module", "_stream")

    def __init__(self, module: Any, stream: Any, *, record: bool, held: tuple[object, ...] = ()) -> None:
        self._module = module
        self._stream = stream
        self._held = held
        self._event: Any = stream.record_event() if record else None

    def wait(self, stream: object | None = None) -> None:
        """Make ``stream`` (None: the caller's current one) wait; never blocks the host."""
        waiting: Any = self._module.current_stream(self._stream.device) if stream is None else stream
        if waiting != self._stream:
            waiting.wait_event(self._recorded())

    def synchronize(self) -> None:
        """Block the host until the work is done."""
        self._recorded().synchronize()

    def done(self) -> bool:
        """Whether the work is done; never blocks."""
        return bool(self._recorded().query())

    def _recorded(self) -> Any:
        if self._event is None:
            self._event = self._stream.record_event()
        return self._event


def has_streams(device: torch.device) -> bool:
    """Whether the device's torch module has streams that work can be ordered on."""
    return device.type != "cpu" and hasattr(torch.get_device_module(device), "current_stream")


def completion_of_stream(device: torch.device, stream: Any, *, held: tuple[object, ...] = ()) -> Completion:
    """Completion of everything queued on ``stream`` so far, recorded now."""
    return StreamCompletion(torch.get_device_module(device), stream, record=True, held=held)


def completion_of_current_stream(device: torch.device) -> Completion:
    """Completion of what was queued on the current stream; costs no event until somebody asks.

    A device without streams is synchronised, so that what is returned is true.
    """
    if device.type == "cpu":
        return COMPLETED
    module = torch.get_device_module(device)
    if not has_streams(device):
        module.synchronize()
        return COMPLETED
    return StreamCompletion(module, module.current_stream(device), record=False)
