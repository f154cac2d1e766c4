"""Devices to test on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

from cachecore import DeviceSpec

settings.register_profile("plugins", deadline=None, max_examples=60)
settings.load_profile("plugins")
torch.set_num_threads(1)


def found_devices() -> list[str]:
    """The CPU, and the accelerator where there is one."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


@pytest.fixture(params=found_devices(), scope="session")
def device(request: pytest.FixtureRequest) -> DeviceSpec:
    """Each device in turn."""
    return DeviceSpec.parse(request.param)


@pytest.fixture(scope="session")
def accelerator() -> DeviceSpec:
    """The accelerator; skips where there is none."""
    if len(found_devices()) == 1:
        pytest.skip("torch finds no accelerator")
    return DeviceSpec.parse(found_devices()[1])
