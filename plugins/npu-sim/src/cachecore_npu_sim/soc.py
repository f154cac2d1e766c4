"""What a simulated device says it is."""

from __future__ import annotations

import os

__all__ = ["device_name", "soc_version"]

_VERSIONS = {"Ascend310P3": 202, "Ascend910B3": 223, "Ascend910_9391": 250, "Ascend950": 260}
"""Source: the SocVersion enumeration of torch_npu."""


def device_name(device: object = None) -> str:
    """``CACHECORE_NPU_SIM_SOC``, or a 910B3."""
    return os.environ.get("CACHECORE_NPU_SIM_SOC", "Ascend910B3")


def soc_version() -> int:
    """The number that torch_npu gives the SoC; -1 for an unknown one."""
    return _VERSIONS.get(device_name(), -1)
