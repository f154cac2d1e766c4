"""What swaps ask the driver for, done by the host: every byte, for random rows, layouts and blocks."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
import torch
from cachecore_cuda_triton import by_engines, carry, driver, staged
from cachecore_cuda_triton.by_engines import EngineCopies
from cachecore_cuda_triton.carry import Carrier
from cachecore_cuda_triton.staged import StagedMoves
from cachecore_torch_default.swap import HostRun
from host_driver import HostRing, host_driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecore import BlockPairs, CopySegment

__all__ = ["host_driver"]

NUM_DEVICE, NUM_HOST = 9, 7
on_the_host = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def swaps(draw: st.DrawFn) -> tuple[list[CopySegment], list[torch.Tensor], torch.Tensor, bool]:
    """Segments between row pools on the device and a block-major host tier, both filled."""
    pools = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=3))
    block = sum(rows * nbytes for rows, nbytes in pools)
    gap = draw(st.sampled_from([0, 0, 24]))
    inwards = draw(st.booleans())
    segments, at = [], 0
    for pool, (rows, nbytes) in enumerate(pools):
        for row in range(rows):
            device, host = (pool, row * NUM_DEVICE * nbytes, nbytes, nbytes), (0, at, block + gap, nbytes)
            segments.append(CopySegment(*(host + device if inwards else device + host), nbytes, 1))
            at += nbytes
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def filled(nbytes: int) -> torch.Tensor:
        return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)

    return (
        segments,
        [filled(rows * NUM_DEVICE * nbytes) for rows, nbytes in pools],
        filled(NUM_HOST * (block + gap)),
        inwards,
    )


def pairs_of(draw: st.DrawFn, inwards: bool) -> BlockPairs:
    num_src, num_dst = (NUM_HOST, NUM_DEVICE) if inwards else (NUM_DEVICE, NUM_HOST)
    dst = draw(st.lists(st.integers(0, num_dst - 1), min_size=1, max_size=NUM_HOST, unique=True))
    return BlockPairs([draw(st.integers(0, num_src - 1)) for _ in dst], dst)


def moved(
    segments: list[CopySegment], src: list[torch.Tensor], dst: list[torch.Tensor], pairs: BlockPairs
) -> list[torch.Tensor]:
    """What ``dst`` should be: the definition of a segment, byte by byte."""
    result = [pool.clone() for pool in dst]
    for one in segments:
        for a, b in pairs:
            at, to = one.src_start + a * one.src_block_stride, one.dst_start + b * one.dst_block_stride
            result[one.dst_pool][to : to + one.nbytes] = src[one.src_pool][at : at + one.nbytes]
    return result


@on_the_host
@given(drawn=swaps(), data=st.data())
def test_pitched_rows(host_driver: None, drawn: tuple, data: st.DataObject) -> None:
    segments, device, host, inwards = drawn
    src, dst = ([host], device) if inwards else (device, [host])
    pairs = pairs_of(data.draw, inwards)
    expected = moved(segments, src, dst, pairs)

    EngineCopies(segments, [pool.data_ptr() for pool in src], [pool.data_ptr() for pool in dst]).queue(pairs, 0)

    assert all(torch.equal(one, two) for one, two in zip(dst, expected, strict=True))


def test_some_blocks_are_queued_before_the_rest(host_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # 20 blocks of 64 bytes in one run each, and of two rows: an eighth first, so that the link need not wait
    asked: list[tuple[str, int]] = []
    for name, words in (("copy_pieces", 1), ("copy_rows", driver.ROW_OP_WORDS)):
        real = getattr(by_engines, name)

        def counted(first: array[int], *rest: object, real: Any = real, name: str = name, words: int = words) -> None:
            asked.append((name, len(first) // words))
            real(first, *rest)

        monkeypatch.setattr(by_engines, name, counted)
    monkeypatch.setattr(by_engines, "_WORTH_TWO", 20 * 64)
    device, host = torch.randint(0, 256, (20, 64), dtype=torch.uint8), torch.zeros(20, 64, dtype=torch.uint8)
    ends, pairs = ([device.data_ptr()], [host.data_ptr()]), BlockPairs(range(20), range(19, -1, -1))

    EngineCopies([CopySegment(0, 0, 64, 64, 0, 0, 64, 64, 64, 1)], *ends).queue(pairs, 0)
    assert torch.equal(host.flip(0), device)
    host.zero_()
    rows = [CopySegment(0, at, 64, 64, 0, at, 64, 64, 16, 1) for at in (0, 32)]
    monkeypatch.setattr(by_engines, "_WORTH_TWO", 20 * 32)
    EngineCopies(rows, *ends).queue(pairs, 0)

    assert torch.equal(host.flip(0)[:, :16], device[:, :16])
    assert torch.equal(host.flip(0)[:, 32:48], device[:, 32:48])
    assert not host[:, 16:32].any()
    assert asked == [("copy_pieces", 2), ("copy_pieces", 18), ("copy_rows", 2), ("copy_rows", 18)]


@pytest.mark.parametrize("slot_blocks", [1, 3, 100])
@on_the_host
@given(drawn=swaps(), data=st.data())
def test_staged_chunks(
    host_driver: None, monkeypatch: pytest.MonkeyPatch, slot_blocks: int, drawn: tuple, data: st.DataObject
) -> None:
    segments, device, host, inwards = drawn
    src, dst = ([host], device) if inwards else (device, [host])
    pairs = pairs_of(data.draw, inwards)
    expected = moved(segments, src, dst, pairs)
    beside: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(staged, "_WORTH_TWO", data.draw(st.sampled_from([0, 1 << 30])))
        patch.setattr(staged, "_FIRST_PART", 3)
        pools = [host.data_ptr()], [pool.data_ptr() for pool in device]
        nbytes = slot_blocks * (sum(one.nbytes for one in segments) + 64)
        moves = StagedMoves(segments, *pools, HostRing(nbytes, patch), host_is_src=inwards)  # type: ignore[arg-type]

        moves.queue(pairs, lambda: beside.append(1))

    assert all(torch.equal(one, two) for one, two in zip(dst, expected, strict=True))
    assert beside == [1]


def test_slots_that_moved_are_found_again(host_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    device, host = torch.randint(0, 256, (6, 64), dtype=torch.uint8), torch.zeros(6, 64, dtype=torch.uint8)
    segments = [CopySegment(0, at, 64, 64, 0, at, 64, 64, 16, 1) for at in (0, 32)]
    ring = HostRing(1 << 10, monkeypatch)
    ends = [host.data_ptr()], [device.data_ptr()]
    moves = StagedMoves(segments, *ends, ring, host_is_src=False)  # type: ignore[arg-type]
    old = ring.slots
    ring.grow(0)  # an engine slept and woke
    for slot in old:
        slot.zero_()

    moves.queue(BlockPairs(range(6), range(6)))

    assert not any(bool(slot.any()) for slot in old)
    assert torch.equal(host[:, :16], device[:, :16])
    assert torch.equal(host[:, 32:48], device[:, 32:48])


@pytest.mark.parametrize(
    ("blocks", "num_pieces"), [([3, 4, 5, 1, 6, 7], 3), ([0, 1, 2, 3], 1), ([4, 2, 0], 3), ([5], 1)]
)
def test_neighbours_of_a_dense_tier_are_one_piece(
    monkeypatch: pytest.MonkeyPatch, blocks: list[int], num_pieces: int
) -> None:
    host, slot = torch.randint(0, 256, (8, 64), dtype=torch.uint8), torch.zeros(8, 64, dtype=torch.uint8)
    asked: list[int] = []

    def copy(dst: array[int], src: array[int], nbytes: array[int], stream: int) -> None:
        from host_driver import copy_pieces

        asked.append(len(dst))
        copy_pieces(dst, src, nbytes, stream)

    monkeypatch.setattr(carry, "copy_pieces", copy)
    carrier = Carrier([HostRun(0, 0, 64, 0, 64)], [host.data_ptr()], 64, host_is_src=True)

    carrier.queue(array("q", blocks), slot.data_ptr(), 0)

    assert torch.equal(slot[: len(blocks)], host[blocks])
    assert asked == [num_pieces]


def test_staging_addresses_that_are_kept_are_bounded(host_driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "_KEPT", 3)
    host, slots = torch.randint(0, 256, (6, 48), dtype=torch.uint8), torch.zeros(4, 6, 32, dtype=torch.uint8)
    carrier = Carrier([HostRun(0, 16, 48, 0, 32)], [host.data_ptr()], 32, host_is_src=True)

    for slot in slots:
        for count in range(1, 6):
            blocks = random.Random(count).sample(range(6), count)
            carrier.queue(blocks, slot.data_ptr(), 0)
            assert torch.equal(slot[:count], host[blocks, 16:])
            assert len(carrier._staging) <= 3


@pytest.mark.parametrize(("inwards", "sizes"), [(False, [8, 40, 16]), (True, [16, 40, 8])])
def test_the_chunk_that_nothing_hides_is_the_small_one(
    monkeypatch: pytest.MonkeyPatch, inwards: bool, sizes: list[int]
) -> None:
    # 64 blocks of 1 MiB, slots of 40: out, the link waits for the first chunk; in, the last kernel for the link
    sides = (0, 0, 1 << 20, 0), (0, 0, 1 << 20, 0)
    segment = CopySegment(*sides[0], *sides[1], 1 << 20, 1)
    moves = StagedMoves([segment], [0], [0], HostRing(40 << 20, monkeypatch), host_is_src=inwards)  # type: ignore[arg-type]

    assert [stop - start for start, stop in moves._chunks(64)] == sizes
