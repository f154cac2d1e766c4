"""From wrong bytes to the fault that usually makes them: what stands there instead says a lot."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.testing.places import Payload, Places

__all__ = ["copy_cause", "stray_cause"]

Contents = Sequence[bytes | bytearray]
Pairs = Sequence[tuple[int, int]]


_NEAR_NBYTES = 64
"""A write that ends so close behind a row was meant for it."""


def copy_cause(
    src: Places,
    dst: Places,
    source: Contents,
    target: Contents,
    found: Contents,
    src_block: int,
    owner: tuple[int, int, int, int],
    pairs: Pairs,
) -> str:
    """Why a destination's row holds something else than its source's."""
    spec, row, block, page = owner
    to = dst.payload(spec, row, block, page)
    got, old = _bytes(found, to), _bytes(target, to)
    want = _bytes(source, src.payload(spec, row, src_block, page))
    if got == old:
        named = {dst_block for _, dst_block in pairs}
        for other in range(dst.num_entries // dst.entries_per_block):
            at = dst.payload(spec, row, other, page)
            if other not in named and _bytes(found, at) == want != _bytes(target, at):
                return f"it landed in block {other}: destination ids are off by {other - block}"
        if page and _bytes(found, first := dst.payload(spec, row, block, 0)) != _bytes(target, first):
            return (
                f"kernel page 0 of the block arrived and page {page} did not: the size of an entry taken for a "
                "block's, or a loop over pages that stops early"
            )
        return _nothing_arrived(src, dst, source, target, found, pairs)
    same = next(at for at in range(len(want)) if want[at] != got[at])
    if got[same:] == old[same:]:
        return (
            f"the last {len(want) - same} of {len(want)} bytes of the row were not copied: a loop over whole words or "
            "vectors that drops the tail"
        )
    for other in range(src.num_entries // src.entries_per_block):
        if other != src_block and got == _bytes(source, src.payload(spec, row, other, page)):
            return f"block {other} was copied instead of block {src_block}: source ids are off by {other - src_block}"
    for other_spec, other_row, other_page in src.parts:
        if got == _bytes(source, src.payload(other_spec, other_row, src_block, other_page)):
            name = src.specs[other_spec].name
            return (
                f"cache {name!r} row {other_row} page {other_page} stands there: rows or pages in the wrong order, "
                "or a stride of the wrong axis"
            )
    if not any(got):
        return "zeros stand there: the source was read from fresh or freed memory, or before it was written"
    return "offsets within the block are wrong, or two pairs wrote here: compare the segment's starts and strides"


def _nothing_arrived(
    src: Places, dst: Places, source: Contents, target: Contents, found: Contents, pairs: Pairs
) -> str:
    for _, block in pairs:
        for spec, row, page in dst.parts:
            to = dst.payload(spec, row, block, page)
            if _bytes(found, to) != _bytes(target, to):
                return (
                    "this row was left out though others of its blocks arrived: a loop over rows, pools or pairs that "
                    "stops early, or a destination id off by one"
                )
    return (
        "nothing was written to any destination: the copy went through a temporary (reshape() or contiguous() of a "
        "strided view is a copy), was not done when it said so, or went the other way"
    )


def stray_cause(src: Places, dst: Places, source: Contents, found: Contents, pool: int, byte: int, pairs: Pairs) -> str:
    """Why a byte changed that no pair names."""
    owner = dst.owner(pool, byte)
    if owner is None:
        return "padding of a block that is no destination: whole pools or spans between blocks were copied"
    spec, row, block, page = owner
    got = _bytes(found, dst.payload(spec, row, block, page))
    for src_block, dst_block in pairs:
        if got == _bytes(source, src.payload(spec, row, src_block, page)):
            off = block - dst_block
            return (
                f"block {src_block} landed in block {block} instead of {dst_block}: destination ids are off by {off}, "
                "or a stride of the wrong axis"
            )
        if src is dst and block == src_block and got == _bytes(source, dst.payload(spec, row, dst_block, page)):
            return f"source block {src_block} holds what block {dst_block} held: the copy went the other way"
    ends = {at.start + at.nbytes for _, to in pairs for part in dst.parts if (at := _part(dst, part, to)).pool == pool}
    if any(end <= byte < end + _NEAR_NBYTES for end in ends):
        return "a write ran past the end of its row: a length rounded up to whole words, or a wrong count"
    return "a write to a wrong address: a stride of the wrong axis (entries and outer mixed up), or a wrong pool"


def _part(places: Places, part: tuple[int, int, int], block: int) -> Payload:
    spec, row, page = part
    return places.payload(spec, row, block, page)


def _bytes(contents: Contents, at: Payload) -> bytes:
    return bytes(contents[at.pool][at.start : at.start + at.nbytes])
