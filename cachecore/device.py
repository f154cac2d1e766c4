"""Devices by name: parsed from strings and objects, never from an array library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachecore.errors import PlanError

_DEVICE = re.compile(r"([a-z][a-z0-9_]*)(?::(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device type and, when it matters, which one of them.

    >>> DeviceSpec.parse("cuda:1")
    DeviceSpec(type='cuda', index=1)
    """

    type: str
    index: int | None = None

    @classmethod
    def parse(cls, device: object) -> DeviceSpec:
        """Read ``"cuda"``, ``"cuda:1"``, a ``torch.device`` or another ``DeviceSpec``.

        Raises
        ------
        PlanError
            When the text is not ``type`` or ``type:index``.
        """
        if isinstance(device, DeviceSpec):
            return device
        if device is None or isinstance(device, (int, float, bytes, bytearray)):
            raise TypeError(f"a device is a name such as 'cpu' or 'cuda:0', not {device!r}")
        match = _DEVICE.fullmatch(str(device))
        if match is None:
            raise PlanError(
                f"device {str(device)!r} is not understood; expected a type and an optional index, "
                "such as 'cpu', 'cuda' or 'npu:1'",
                device=str(device),
            )
        index = match.group(2)
        return cls(match.group(1), None if index is None else int(index))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"
