"""Sleep: groups whose device memory is given back, and what they held, kept in host memory or dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, SupportsIndex, TypeVar

from cachecore.answers import memory_of
from cachecore.asking import shown
from cachecore.backend import CacheAllocation
from cachecore.blocks import BlockPairs
from cachecore.engine_group import EngineGroup
from cachecore.errors import AllocationError, BlockIndexError, CacheLookupError, EngineStateError, PlanError
from cachecore.meaning import several, whole

__all__ = ["Live", "Sleep", "check_level", "live_blocks"]

A = TypeVar("A")
V = TypeVar("V")

_KEEP = 1
_DROP = 2

Live = Mapping[str, Sequence[int]] | Sequence[int] | None
"""Blocks or slots worth keeping per group, or one sequence where there is a single group; None for all."""


def check_level(level: SupportsIndex, live: Live) -> int:
    """1 or 2; ``live`` has a meaning with 1 only."""
    number = whole(level, "level")
    if number not in (_KEEP, _DROP):
        raise PlanError(f"sleep level is {number}; expected 1 (contents kept in host memory) or 2 (contents dropped)")
    if number == _DROP and live is not None:
        raise PlanError("sleep level 2 drops all contents, so live= has no meaning; use level 1 to keep blocks")
    return number


def live_blocks(groups: Sequence[EngineGroup[Any]], live: Live) -> dict[str, Sequence[int]]:
    """Blocks to keep of every group, checked; all of a group that is not named."""
    sizes = {group.plan.name: group.num_blocks for group in groups}
    if live is None:
        named: Mapping[str, Sequence[int]] = {}
    elif isinstance(live, Mapping):
        named = live
    elif len(sizes) == 1:
        named = dict.fromkeys(sizes, live)
    else:
        raise PlanError(f"live lists blocks, but this engine has groups {', '.join(sizes)}; give a list for each")
    for name in named:
        if name not in sizes:
            raise CacheLookupError(
                f"live names group {name!r}, which does not exist; the groups are {', '.join(sizes)}", group=name
            )
    return {group.plan.name: _blocks(group, named.get(group.plan.name)) for group in groups}


def _blocks(group: EngineGroup[Any], live: Sequence[int] | None) -> Sequence[int]:
    if live is None:
        return range(group.num_blocks)
    unit = group.plan.unit
    listed = sorted({whole(block, f"a live {unit}") for block in several(live, f"live {unit}s")})
    for block in listed:
        if not 0 <= block < group.num_blocks:
            raise BlockIndexError(
                f"live {unit} {block} is out of range; group {group.plan.name!r} has {group.num_blocks}, numbered from "
                "0",
                block=block,
                limit=group.num_blocks,
            )
    return listed


def _each(calls: Iterable[Callable[[], None]]) -> list[BaseException]:
    """Give back what each call does, whatever fails meanwhile; what failed."""
    failed: list[BaseException] = []
    for call in calls:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # Ctrl-C too: the others are given back before it is told
            failed.append(error)
    return failed


def _released(groups: Sequence[EngineGroup[Any]]) -> list[BaseException]:
    """Every group is asleep afterwards; what failed meanwhile."""
    return _each(group.sleep for group in groups)


class _Saved(Generic[A]):
    """Blocks of one group in host memory of their own."""

    def __init__(self, group: EngineGroup[A], blocks: Sequence[int]) -> None:
        self._group = group
        self._blocks = blocks
        self.nbytes = group.plan.reserved_nbytes(len(blocks), host=True)
        self._memory: CacheAllocation[A] = group.take_host(len(blocks))
        try:
            self._move(group.device, self._memory, BlockPairs(blocks, range(len(blocks))))
        except BaseException:
            self.drop()
            raise

    def put_back(self) -> None:
        """Into the group's device memory."""
        self._move(self._memory, self._group.device, BlockPairs(range(len(self._blocks)), self._blocks))

    def drop(self) -> None:
        """Give the host memory back."""
        self._group.drop(self._memory)

    def _move(self, src: CacheAllocation[A], dst: CacheAllocation[A], pairs: BlockPairs) -> None:
        self._group.move(src, dst, pairs).synchronize()


class Sleep(Generic[A]):
    """One sleep of all groups of an engine. Making it saves what level 1 keeps, and releases nothing yet.

    Whatever fails while it is made leaves the groups awake and unharmed.
    """

    def __init__(self, groups: Sequence[EngineGroup[A]], level: int, live: Live) -> None:
        blocks = live_blocks(groups, live)
        for group in groups:
            group.settle()
        self.level = level
        self._groups = tuple(groups)
        self._saved: dict[str, _Saved[A]] = {}
        if level == _DROP:
            return
        try:
            for group in groups:
                if blocks[group.plan.name]:
                    self._saved[group.plan.name] = _Saved(group, blocks[group.plan.name])
        except BaseException as error:
            self.drop()
            if not isinstance(error, AllocationError):
                raise
            needed = sum(group.plan.reserved_nbytes(len(blocks[group.plan.name]), host=True) for group in groups)
            raise AllocationError(
                f"sleep level 1 keeps contents in {needed} bytes of host memory, which could not be had ({error}); "
                "the engine stays awake. Name fewer live= blocks, or sleep with level 2, which drops them",
                needed_nbytes=needed,
            ) from error

    @property
    def stable_addresses(self) -> bool:
        """Whether everything made over the memory outlasts this sleep."""
        return all(group.stable_addresses for group in self._groups)

    def begin(self) -> None:
        """Give all device memory back; the first release that failed is told last."""
        failed = _released(self._groups)
        if failed:
            raise failed[0]

    def again(self, level: int) -> None:
        """Asleep already: level 2 drops what level 1 kept, level 1 after 2 is too late."""
        if level < self.level:
            raise EngineStateError(
                "this engine is asleep at level 2, so its contents are gone and level 1 cannot keep them; call wake()"
            )
        self.level = level
        if level == _DROP:
            self.drop()

    def end(self, show: Callable[[bool], V]) -> V:
        """Take memory again, put contents back, and ``show`` them; True for the same addresses.

        Whatever fails, the engine stays asleep with its contents kept. :meth:`drop` them when it is awake.
        """
        awake: list[EngineGroup[A]] = []
        try:
            same = [self._wake(group, awake) for group in self._groups]
            for saved in self._saved.values():
                saved.put_back()
            return show(all(same))
        except BaseException as error:
            for failure in _released(awake):
                error.add_note(f"giving back what was taken failed too: {shown(failure)}")
            if isinstance(error, AllocationError):
                raise self._refusal(error) from error
            raise

    def forget(self, groups: Sequence[EngineGroup[A]]) -> None:
        """Groups that are closed do not wake."""
        gone = [group.plan.name for group in groups]
        self._groups = tuple(group for group in self._groups if group.plan.name not in gone)
        self._drop([name for name in gone if name in self._saved])

    def drop(self) -> None:
        """Give the saved contents' host memory back; the first that failed is told last."""
        self._drop(list(self._saved))

    def _drop(self, names: Sequence[str]) -> None:
        failed = _each([self._saved.pop(name).drop for name in names])
        if failed:
            raise failed[0]

    def saved_nbytes(self, group: str) -> int:
        """Host bytes that keep one group's contents."""
        return self._saved[group].nbytes if group in self._saved else 0

    def _wake(self, group: EngineGroup[A], awake: list[EngineGroup[A]]) -> bool:
        same = group.wake()
        awake.append(group)
        return same

    def _refusal(self, error: AllocationError) -> AllocationError:
        needed = sum(group.plan.reserved_nbytes(group.num_blocks) for group in self._groups)
        backend, device = self._groups[0].backend, self._groups[0].device.device
        free = memory_of(backend, device).free_nbytes
        kept = ", its contents kept in host memory" if self._saved else ""
        return AllocationError(
            f"wake() needs {needed} bytes on {device}, where {free} are free ({error}); the engine stays asleep{kept}. "
            "Free memory there and call wake() again",
            needed_nbytes=needed,
            free_nbytes=free,
            device=str(device),
        )
