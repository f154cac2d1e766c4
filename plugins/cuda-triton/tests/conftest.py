"""Where the kernels run: on the GPU if there is one, else in Triton's interpreter on the CPU."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

HAS_GPU = torch.cuda.is_available() and torch.version.cuda is not None and "TRITON_INTERPRET" not in os.environ
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated, so before any is imported

settings.register_profile("plugins", deadline=None, max_examples=200 if HAS_GPU else 30, derandomize=True)
settings.load_profile("plugins")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """What the kernels run on."""
    return torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    """The GPU; skips where there is none."""
    if not HAS_GPU:
        pytest.skip("needs an NVIDIA GPU and kernels that are not interpreted")
    return torch.device("cuda", 0)
