"""Copies that are wrong, over a backend that is right."""

from __future__ import annotations

from functools import partial

from conformance.mutant import Mutant, WrongCopy, byte_subject

from cachecore import BlockPairs


class SourceOffByOne(WrongCopy):
    def __call__(self, pairs, after=()):
        last = self.context.num_src_blocks - 1
        return super().__call__([(min(src + 1, last), dst) for src, dst in pairs], after)


class DestinationOffByOne(WrongCopy):
    def __call__(self, pairs, after=()):
        last = self.context.num_dst_blocks - 1
        return super().__call__([(src, min(dst + 1, last)) for src, dst in pairs], after)


class MissingTail(WrongCopy):
    """Whole 8-byte words; what is left over is forgotten."""

    def run(self, number, index, one, page, at, to):
        self.write(one, to, self.read(one, at, one.nbytes // 8 * 8))


class RoundsUp(WrongCopy):
    """Whole 64-byte words; the last one runs past the end."""

    def run(self, number, index, one, page, at, to):
        end = self.context.src.layout.pool_nbytes(one.src_pool, self.context.src.num_entries)
        limit = self.context.dst.layout.pool_nbytes(one.dst_pool, self.context.dst.num_entries)
        self.write(one, to, self.read(one, at, min(-(-one.nbytes // 64) * 64, end - at, limit - to)))


class WrongAxis(WrongCopy):
    """Takes the distance between pages, or the run itself, for the distance between blocks."""

    def __call__(self, pairs, after=()):
        step = [one._replace(dst_block_stride=one.nbytes // 2 or 1) for one in self.context.segments]
        self.context = _changed(self.context, segments=tuple(step))
        return super().__call__(pairs, after)


class ThroughATemporary(WrongCopy):
    """Writes into ``reshape(...)`` of a strided view, which is a copy."""

    def write(self, one, to, data):
        temporary = bytearray(self.old(one, to, len(data)))
        temporary[:] = data


class SwappedDirection(WrongCopy):
    def __call__(self, pairs, after=()):
        if not self.context.same_allocation:
            return super().__call__(pairs, after)
        return super().__call__([(dst, src) for src, dst in pairs], after)


class SwappedSwap(WrongCopy):
    """Right on the device; between device and host the bytes go the other way."""

    def run(self, number, index, one, page, at, to):
        if self.context.src.device.type == self.context.dst.device.type:
            super().run(number, index, one, page, at, to)
            return
        data = self.old(one, to, one.nbytes)
        self.context.src_backend.write(self.context.src, one.src_pool, at, data)


class FirstPoolOnly(WrongCopy):
    def run(self, number, index, one, page, at, to):
        if one.src_pool == 0:
            super().run(number, index, one, page, at, to)


class FirstRowOnly(WrongCopy):
    """A row stride of zero: every layer's bytes land in the first."""

    def run(self, number, index, one, page, at, to):
        if index == 0 or not self.context.same_allocation:
            super().run(number, index, one, page, at, to)


class RowsSwapped(WrongCopy):
    """Rows arrive in the wrong order."""

    def run(self, number, index, one, page, at, to):
        alike = [
            other
            for other in self.context.segments
            if (other.src_pool, other.nbytes, other.num_pages) == (one.src_pool, one.nbytes, one.num_pages)
        ]
        other = alike[-1 - alike.index(one)]
        super().run(number, index, one, page, at - one.src_start + other.src_start, to)


class DropsTheLastPair(WrongCopy):
    def __call__(self, pairs, after=()):
        return super().__call__(list(pairs)[: max(1, len(pairs) - 1)], after)


class SortsApart(WrongCopy):
    """Sorts sources and destinations for locality, each by itself."""

    def __call__(self, pairs, after=()):
        return super().__call__(BlockPairs(sorted(pairs.src), sorted(pairs.dst)), after)


class OneGridAxis(WrongCopy):
    """Pairs on a grid axis that holds 65,535."""

    def __call__(self, pairs, after=()):
        return super().__call__(list(pairs)[:65_535], after)


class DescriptorTable(WrongCopy):
    """A table of 8,192 runs; the rest is dropped."""

    def __call__(self, pairs, after=()):
        self.left = 8192
        return super().__call__(pairs, after)

    def run(self, number, index, one, page, at, to):
        self.left -= 1
        if self.left >= 0 or not self.context.same_allocation:
            super().run(number, index, one, page, at, to)


class SwapDescriptorTable(DescriptorTable):
    """The same on the way to the host."""

    def run(self, number, index, one, page, at, to):
        self.left -= 1
        if self.left >= 0 or self.context.same_allocation:
            WrongCopy.run(self, number, index, one, page, at, to)


class ThirtyTwoBits(WrongCopy):
    def run(self, number, index, one, page, at, to):
        super().run(number, index, one, page, at % (1 << 32), to % (1 << 32))


class FirstPageOnly(WrongCopy):
    """Right within one layout, where pages join; forgets pages between two."""

    def run(self, number, index, one, page, at, to):
        if page == 0:
            super().run(number, index, one, page, at, to)


class PaddingOfAnotherBlock(WrongCopy):
    """Clears the gap before the destination's entry."""

    def __call__(self, pairs, after=()):
        done = super().__call__(pairs, after)
        for _, dst in pairs:
            for one in self.context.segments:
                to = one.dst_start + dst * one.dst_block_stride
                if self.context.same_allocation and dst and one.src_pool == 0 and one.nbytes > 4000:
                    self.write(one, to - 1, b"\0")
        return done


class AssumesBlockMajorHost(WrongCopy):
    """Takes the host's block for one run, whatever its layout."""

    def run(self, number, index, one, page, at, to):
        context = self.context
        if context.dst.device.type != "cpu" or context.same_allocation:
            super().run(number, index, one, page, at, to)
            return
        block = (to - one.dst_start - page * one.dst_page_stride) // one.dst_block_stride
        size = context.dst.layout.entry_nbytes * context.dst.num_entries // context.num_dst_blocks
        start = one.dst_start % size
        last = context.dst.layout.pool_nbytes(one.dst_pool, context.dst.num_entries) - one.nbytes
        self.write(one, min(block * size + start + page * one.dst_page_stride, last), self.read(one, at, one.nbytes))


class DoneTooEarly(WrongCopy):
    """Says that it is done and has not begun."""

    def __call__(self, pairs, after=()):
        listed, run = list(pairs), super().__call__

        class Later:
            def wait(self, stream=None):
                """Nobody waits."""

            def synchronize(self):
                """Nothing to wait for, it thinks."""

            def done(self):
                return True

        pending = getattr(self, "pending", None)
        if pending is not None:
            pending()
        self.pending = partial(run, listed)
        return Later()


class Unnamed(WrongCopy):
    path = "unnamed"


def _changed(context, **fields):
    from dataclasses import replace

    return replace(context, **fields)


def _mutant(copy, caught_by, says):
    return Mutant(copy.__name__, lambda: byte_subject(copy=copy), caught_by, says)


COPY_MUTANTS = [
    _mutant(SourceOffByOne, "copy/one-pair", "source ids are off by 1"),
    _mutant(DestinationOffByOne, "copy/one-pair", "destination ids are off by 1"),
    _mutant(MissingTail, "copy/one-pair[rows-132]", "the last 4 of 132 bytes of the row were not copied"),
    _mutant(RoundsUp, "copy/one-pair[rows-132]", "ran past the end of its row"),
    _mutant(WrongAxis, "copy/one-pair", "stride of the wrong axis"),
    _mutant(ThroughATemporary, "copy/one-pair", "the copy went through a temporary"),
    _mutant(SwappedDirection, "copy/one-pair", "the copy went the other way"),
    _mutant(SwappedSwap, "swap/round-trip", "went the other way"),
    _mutant(FirstPoolOnly, "copy/one-pair[kv-and-index]", "a loop over rows, pools or pairs that stops early"),
    _mutant(FirstRowOnly, "copy/one-pair", "a loop over rows, pools or pairs that stops early"),
    _mutant(RowsSwapped, "copy/one-pair", "rows or pages in the wrong order"),
    _mutant(DropsTheLastPair, "copy/many-pairs", "a loop over rows, pools or pairs that stops early"),
    _mutant(SortsApart, "copy/many-pairs", "source ids are off by"),
    _mutant(OneGridAxis, "copy/large[65600-pairs]", "a loop over rows, pools or pairs that stops early"),
    _mutant(DescriptorTable, "copy/large[8640-runs]", "a loop over rows, pools or pairs that stops early"),
    _mutant(SwapDescriptorTable, "swap/many-runs", "a loop over rows, pools or pairs that stops early"),
    _mutant(ThirtyTwoBits, "copy/far-offsets", "offsets computed in 32 bits wrap around"),
    _mutant(FirstPageOnly, "copy/between-layouts", "a loop over pages that stops early"),
    _mutant(PaddingOfAnotherBlock, "copy/one-pair[aligned]", "padding of a block that is no destination"),
    _mutant(AssumesBlockMajorHost, "swap/other-host-layouts[contiguous]", "swap_out"),
    _mutant(DoneTooEarly, "copy/one-pair", "was not done when it said so"),
    _mutant(Unnamed, "capabilities/slower-ways-are-counted", "a name for the way the bytes go"),
]
