"""The CPU as a device: torch's memory and views, and what the CPU cannot do."""

from __future__ import annotations

from collections.abc import Mapping

from cachecore_torch_default import TorchBackend

__all__ = ["CpuBackend"]


class CpuBackend(TorchBackend):
    """Both tiers are host memory; copies are done when the call returns."""

    name = "cpu"

    def capabilities(self) -> Mapping[str, str | None]:
        """A device that is the host needs no page-locked memory, no streams and no graphs."""
        return {
            "pinned_host": "the device is the host, so page-locked memory would speed up nothing",
            "device_ids": None,
            "graph_capture": "the CPU has no graphs",
            "async_copy": "copies run in the caller and are done when the call returns",
            "byte_addressable": None,
        }
