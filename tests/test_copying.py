from __future__ import annotations

import pytest
from samples import layer_spec

from cachecore import (
    COMPLETED,
    BlockCacheCopy,
    BlockPairs,
    ByteBackend,
    CopyContext,
    CopySegment,
    DeviceSpec,
    EngineStateError,
)
from cachecore.layout_kinds import packed_layout


def context(*segments, same=False):
    backend = ByteBackend()
    layout = packed_layout([layer_spec()])
    src, dst = (backend.allocate(layout, 2, DeviceSpec("null")) for _ in range(2))
    return CopyContext(backend, src, backend, src if same else dst, 2, 2, segments)


def test_a_context_counts_the_bytes_of_a_block():
    segments = (CopySegment(0, 0, 1024, 256, 0, 0, 512, 128, nbytes=128, num_pages=4), CopySegment(*[0] * 8, 64, 1))

    # 4 * 128 + 64
    assert context(*segments).block_nbytes == 576


@pytest.mark.parametrize("same", [True, False])
def test_a_context_knows_a_block_copy_from_a_swap(same):
    assert context(same=same).same_allocation is same


def test_a_copy_takes_no_device_ids_unless_it_says_so():
    class HostOnly(BlockCacheCopy):
        path = "host-only"

        def __call__(self, pairs, after=()):
            return COMPLETED

    assert HostOnly()(BlockPairs([0], [1])) is COMPLETED
    assert HostOnly.workspace_nbytes == 0
    with pytest.raises(
        EngineStateError, match=r"copy path 'host-only' cannot take device-resident ids; use copy_blocks"
    ):
        HostOnly().on_device(None)
