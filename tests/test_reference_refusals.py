"""What the byte backend refuses: bytes outside an allocation, and memory that was freed."""

from __future__ import annotations

import pytest
from samples import layer_spec

from cachecore import BlockIndexError, ByteBackend, DeviceSpec, EngineStateError
from cachecore.layout_kinds import packed_layout

NULL = DeviceSpec("null")
PACKED = packed_layout([layer_spec("k_cache"), layer_spec("v_cache")])


@pytest.mark.parametrize(
    "use",
    [
        lambda backend, allocation: backend.read(allocation, 0, 3070, 3),
        lambda backend, allocation: backend.read(allocation, 0, -1, 1),
        lambda backend, allocation: backend.write(allocation, 0, 3071, b"ab"),
        lambda backend, allocation: backend.read(allocation, 1, 0, 1),
        lambda backend, allocation: backend.zero(allocation, [0, 3]),
        lambda backend, allocation: backend.zero(allocation, [-1]),
    ],
    ids=["past the end", "before the start", "write past the end", "pool", "entry", "negative entry"],
)
def test_bytes_outside_an_allocation_are_refused(use):
    backend = ByteBackend()
    allocation = backend.allocate(PACKED, 3, NULL)  # 3 entries * 1024 bytes
    backend.write(allocation, 0, 0, b"\7" * 3072)

    with pytest.raises(BlockIndexError):
        use(backend, allocation)

    assert backend.read(allocation, 0, 0, 3072) == b"\7" * 3072


@pytest.mark.parametrize(
    "use",
    [
        lambda backend, allocation: backend.read(allocation, 0, 0, 1),
        lambda backend, allocation: backend.write(allocation, 0, 0, b"a"),
        lambda backend, allocation: backend.zero(allocation, [0]),
        lambda backend, allocation: backend.regions(allocation),
        lambda backend, allocation: backend.row_view(allocation, 0, layer_spec(), 0),
    ],
    ids=["read", "write", "zero", "regions", "row_view"],
)
def test_an_allocation_that_was_freed_says_so(use):
    backend = ByteBackend()
    allocation = backend.allocate(PACKED, 3, NULL)
    backend.free(allocation)

    with pytest.raises(EngineStateError, match="this allocation was freed"):
        use(backend, allocation)
