"""Block ids of one copy: proved in range, distinct and disjoint before anything is queued."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Union, cast

from cachecore.errors import BlockIndexError, BlockPairsError

PairsLike = Union["BlockPairs", Mapping[int, int], Iterable[tuple[int, int]]]
"""What a copy accepts: :class:`BlockPairs`, ``{source: destination}`` or ``(source, destination)`` tuples."""


if TYPE_CHECKING:
    _Array = array[int]
else:  # an array is subscriptable from Python 3.12 on
    _Array = array


class BlockIds(_Array):
    """An ``array('q')`` that stays as it was checked: everything that would change it is a TypeError."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("block ids stay as they were checked; make new BlockPairs, from .tolist() if need be")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = byteswap = _refuse
    frombytes = fromfile = fromlist = fromunicode = _refuse


class BlockPairs:
    """Sources and destinations of one copy, as host integers.

    ``src`` and ``dst`` are ``array('q')`` of equal length; both support the buffer protocol, so a
    backend uploads them without a Python loop. Sources may repeat (a fork), destinations may not.
    Neither changes any more; whoever writes into their buffers breaks what was checked.

    >>> len(BlockPairs(range(3), range(8, 11)))
    3

    Raises
    ------
    TypeError
        When an id is no integer, or the ids live on a device.
    BlockPairsError
        When the lengths differ or a destination is named twice.
    """

    __slots__ = ("_dst", "_most", "_src")

    def __init__(self, src: Iterable[int], dst: Iterable[int]) -> None:
        self._src = src = _ids(src, "source")
        self._dst = dst = _ids(dst, "destination")
        if len(src) != len(dst):
            raise BlockPairsError(
                f"{len(src)} source blocks for {len(dst)} destinations; expected one destination for each source",
                num_src=len(src),
                num_dst=len(dst),
            )
        if len(dst) > 1 and len(set(dst)) != len(dst):
            block = _first_repeat(dst)
            raise BlockPairsError(
                f"destination block {block} is named more than once; two copies into one block have no order, "
                "so name each destination once",
                block=block,
            )
        self._most = _most(src), _most(dst)  # here once, so that queuing has less to do

    @property
    def src(self) -> BlockIds:
        """The source of each pair."""
        return self._src

    @property
    def dst(self) -> BlockIds:
        """The destination of each pair."""
        return self._dst

    @classmethod
    def of(cls, pairs: PairsLike) -> BlockPairs:
        """Read ``pairs`` in any accepted form."""
        if isinstance(pairs, BlockPairs):
            return pairs
        if isinstance(pairs, Mapping):
            return cls(pairs.keys(), pairs.values())
        _refuse_text_and_tensors(pairs, "block pairs")
        listed = list(pairs)
        try:
            src = [src for src, _ in listed]
            dst = [dst for _, dst in listed]
        except (TypeError, ValueError) as error:
            raise TypeError(
                "block pairs are BlockPairs, a mapping {source: destination} or (source, destination) tuples"
            ) from error
        return cls(src, dst)

    def check_range(self, *, num_src: int, num_dst: int, what: str = "block") -> None:
        """Raise :class:`BlockIndexError` for the first id outside ``[0, num)``."""
        if self._most[0] < num_src and self._most[1] < num_dst:
            return
        for ids, limit, side in ((self._src, num_src, "source"), (self._dst, num_dst, "destination")):
            wrong = next((block for block in ids if not 0 <= block < limit), None)
            if wrong is not None:
                raise BlockIndexError(
                    f"{side} {what} {wrong} is out of range; this side has {limit} {what}s"
                    + (f", numbered 0 to {limit - 1}" if limit else ""),
                    block=wrong,
                    limit=limit,
                )

    def check_disjoint(self, what: str = "block") -> None:
        """Raise :class:`BlockPairsError` when one id is both read and written."""
        if self.src and not set(self.dst).isdisjoint(self.src):
            both = min(set(self.dst).intersection(self.src))
            raise BlockPairsError(
                f"{what} {both} is both a source and a destination; within one copy the result would depend on "
                "the order, so split the copy in two",
                block=both,
            )

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Yield ``(source, destination, length)`` of neighbouring pairs, sorted by source.

        >>> list(BlockPairs([4, 1, 5, 0, 6, 9], [20, 11, 21, 10, 22, 30]).runs())
        [(0, 10, 2), (4, 20, 3), (9, 30, 1)]
        """
        pairs = iter(sorted(zip(self.src, self.dst, strict=True)))
        first = next(pairs, None)
        if first is None:
            return
        start_src, start_dst = first
        length = 1
        for src, dst in pairs:
            if src == start_src + length and dst == start_dst + length:
                length += 1
                continue
            yield start_src, start_dst, length
            start_src, start_dst, length = src, dst, 1
        yield start_src, start_dst, length

    def __len__(self) -> int:
        return len(self.src)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.src, self.dst, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockPairs) and self.src == other.src and self.dst == other.dst

    __hash__ = None  # type: ignore[assignment]  # nobody needs it

    def __repr__(self) -> str:
        return f"BlockPairs({list(self.src)}, {list(self.dst)})"


def _ids(ids: Iterable[int], side: str) -> BlockIds:
    if isinstance(ids, range) and all(-(1 << 63) <= end < 1 << 63 for end in (ids.start, ids.stop)):
        return BlockIds("q", ids)
    _refuse_text_and_tensors(ids, f"{side} blocks")
    listed = cast("list[int]", ids.tolist() if hasattr(ids, "tolist") else list(ids))
    if not isinstance(listed, list):
        raise TypeError(f"{side} blocks must be a sequence of integers, not {ids!r}")
    if bool in set(map(type, listed)):
        raise TypeError(f"{side} blocks must be integers, not booleans")
    try:
        return BlockIds("q", listed)
    except TypeError as error:
        raise TypeError(f"{side} blocks must be integers: {error}") from error
    except OverflowError as error:
        raise BlockIndexError(f"a {side} block does not fit 64 bits: {error}") from error


def _most(ids: BlockIds) -> int:
    """The largest id, -1 without any; as unsigned words, so that a negative one is above any number of blocks."""
    return max(array("Q", ids.tobytes()), default=-1)


def _refuse_text_and_tensors(ids: object, what: str) -> None:
    if isinstance(ids, (str, bytes, bytearray)):
        raise TypeError(f"{what} must be integers, not {ids!r}")
    if type(ids).__module__.partition(".")[0] == "torch":
        raise TypeError(
            f"{what} given as a torch tensor: reading it on the host may synchronise the device; "
            "pass tensor.tolist(), or device-resident int64[2, n] ids to copy_blocks_on_device()"
        )
    if not isinstance(ids, Iterable):
        raise TypeError(f"{what} must be a sequence of integers, not {ids!r}")


def _first_repeat(ids: BlockIds) -> int:
    seen: set[int] = set()
    for block in ids:
        if block in seen:
            return block
        seen.add(block)
    raise AssertionError("called only when an id repeats")  # pragma: no cover
