"""The contracts between the core and a plugin: memory, views, and the record that announces them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cachecore.device import DeviceSpec
from cachecore.errors import EngineStateError
from cachecore.layout import CacheLayout
from cachecore.policy import LayoutPolicy
from cachecore.schema import CacheTensorSpec

__all__ = [
    "API_VERSION",
    "COMPLETED",
    "HOST",
    "PINNED_HOST",
    "BackendInfo",
    "CacheAllocation",
    "CacheBackend",
    "Completion",
    "MemoryInfo",
    "Region",
]

A = TypeVar("A")

API_VERSION = 1
"""The plugin interface this core speaks. A plugin states the one it was written for."""

HOST = "host"
PINNED_HOST = "host:pinned"
"""Memory kinds of the host tier; any other memory kind is a device type."""


class Completion(Protocol):
    """When queued work is done."""

    def wait(self, stream: object | None = None) -> None:
        """Make ``stream`` (None: the caller's current one) wait; never blocks the host."""

    def synchronize(self) -> None:
        """Block the host until the work is done."""

    def done(self) -> bool:
        """Whether the work is done; never blocks. Threads may ask at once."""


class _Completed:
    """Work that was done when the call returned."""

    def wait(self, stream: object | None = None) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def done(self) -> bool:
        return True


COMPLETED: Completion = _Completed()
"""For synchronous backends."""


class MemoryInfo(NamedTuple):
    """Bytes free and in total on one device."""

    free_nbytes: int
    total_nbytes: int


class Region(NamedTuple):
    """One pool as a transfer may register it: never a row. ``address`` is the first byte."""

    pool: int
    address: int
    nbytes: int


@dataclass(slots=True)
class CacheAllocation(Generic[A]):
    """The bytes of one group on one tier: exactly ``layout.reserved_nbytes(num_entries)`` of them.

    ``pools`` are views ``uint8[outer, num_entries, inner]`` of ``buffers``, aligned to each pool's
    ``base_alignment``. An adopted allocation owns nothing. ``memory_kind`` is the device type,
    ``"host"`` or ``"host:pinned"``. ``excess_nbytes`` are taken beyond the buffers, where memory with
    stable addresses comes in whole device pages.
    """

    layout: CacheLayout
    num_entries: int
    device: DeviceSpec
    memory_kind: str
    buffers: tuple[Any, ...]
    pools: tuple[A, ...]
    owned: bool = True
    freed: bool = field(default=False)
    excess_nbytes: int = field(default=0)


class CacheBackend(ABC, Generic[A]):
    """Memory and views of one device family. ``A`` is its array type.

    Every method gets an allocation that this backend made. ``spec_index`` is the spec's position
    in the plan, the index of its rows in ``layout.slices``.
    """

    name: str
    policy: LayoutPolicy

    @abstractmethod
    def allocate(
        self, layout: CacheLayout, num_entries: int, device: DeviceSpec, *, pinned: bool = False
    ) -> CacheAllocation[A]:
        """Take zeroed memory on ``device``; with device type ``cpu`` and ``pinned``, page-locked if there is any.

        Raises :class:`~cachecore.errors.AllocationError` naming pool, bytes, device and free bytes;
        whatever was taken before is freed.
        """

    @abstractmethod
    def adopt(self, buffer: Any, layout: CacheLayout, num_entries: int) -> CacheAllocation[A]:
        """Use given memory (one buffer, pools one after another) without owning it."""

    @abstractmethod
    def free(self, allocation: CacheAllocation[A]) -> None:
        """Give memory back, ordered after every stream that used it. Twice is once."""

    @abstractmethod
    def view(self, allocation: CacheAllocation[A], spec_index: int, spec: CacheTensorSpec) -> A | None:
        """The whole tensor ``(rows, entries, *shape)`` aliasing the pool, or None for unequally spaced rows.

        With ``pages_per_entry > 1`` the pages of an entry are one more axis, after the entries.
        """

    @abstractmethod
    def row_view(self, allocation: CacheAllocation[A], spec_index: int, spec: CacheTensorSpec, row: int) -> A:
        """One row ``(entries, *shape)``, aliasing the pool."""

    @abstractmethod
    def memory(self, device: DeviceSpec) -> MemoryInfo:
        """Free and total bytes, from the device's own module."""

    @abstractmethod
    def capabilities(self) -> Mapping[str, str | None]:
        """What this backend can do: None for able, else the reason why not.

        Keys: ``pinned_host``, ``device_ids`` (copies with device-resident ids), ``graph_capture``,
        ``async_copy``, ``byte_addressable``; optional: ``stable_addresses`` (:meth:`allocate_stable`).
        """

    @abstractmethod
    def zero(self, allocation: CacheAllocation[A], entries: Sequence[int]) -> Completion:
        """Zero the given entries of every pool."""

    @abstractmethod
    def read(self, allocation: CacheAllocation[A], pool: int, offset: int, nbytes: int) -> bytes:
        """Bytes of one pool, after all work queued on it."""

    @abstractmethod
    def write(self, allocation: CacheAllocation[A], pool: int, offset: int, data: bytes) -> None:
        """Overwrite bytes of one pool; visible to work queued later."""

    @abstractmethod
    def regions(self, allocation: CacheAllocation[A]) -> tuple[Region, ...]:
        """The non-empty pools, for registration with a transfer engine."""

    def allocate_stable(self, layout: CacheLayout, num_entries: int, device: DeviceSpec) -> CacheAllocation[A]:
        """As :meth:`allocate` on a device, keeping its addresses over :meth:`release` and :meth:`restore`.

        Asked for only where the capability ``stable_addresses`` is declared.
        """
        reason = self.capabilities().get("stable_addresses", "the backend does not declare stable_addresses")
        raise EngineStateError(f"backend {self.name!r} cannot keep addresses over sleep: {reason}")

    def release(self, allocation: CacheAllocation[A]) -> None:
        """Give an allocation's memory back to the device until :meth:`restore`, ordered as :meth:`free`.

        Its bytes are lost and it may not be used. Of :meth:`allocate_stable`'s it keeps the addresses.
        """
        self.free(allocation)

    def restore(self, allocation: CacheAllocation[A]) -> CacheAllocation[A]:
        """Take zeroed memory again for what was released: the same object only where every address is as before.

        An :class:`~cachecore.errors.AllocationError` leaves it released.
        """
        return self.allocate(allocation.layout, allocation.num_entries, allocation.device)

    def serves_layout(self, layout: CacheLayout, policy: str, version: str) -> str | None:
        """None when a plan made by ``policy`` can be served, else the reason. By default only the own policy's."""
        if (policy, version) == (self.policy.name, self.policy.version):
            return None
        return (
            f"the plan was laid out by policy {policy!r} version {version}, but backend {self.name!r} has "
            f"{self.policy.name!r} version {self.policy.version}"
        )


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """How a plugin announces a backend; made without importing a driver or an array library.

    ``device_types`` lists torch device types, or ``("*",)`` for any. ``probe(device)`` returns None
    or the reason why not; it may import the array library, creates no device context, and runs
    under a time limit. ``load_policy`` works without the array library and without the device.
    """

    name: str
    device_types: tuple[str, ...]
    priority: int
    probe: Callable[[DeviceSpec], str | None]
    load_policy: Callable[[], LayoutPolicy]
    load: Callable[[], CacheBackend[Any]]
    api_version: int = API_VERSION
