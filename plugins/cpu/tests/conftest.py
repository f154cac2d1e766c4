"""Settings of every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("plugins", deadline=None, max_examples=60)
settings.load_profile("plugins")


@pytest.fixture(params=[1, 2], scope="session")
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Threads that torch may use, and the copy with it."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
