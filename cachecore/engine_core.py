"""What block engines and state engines share: finding a group, stats, sleep and close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, NoReturn, Self, TypeVar

from cachecore.backend import CacheBackend, Completion
from cachecore.blocks import PairsLike
from cachecore.device import DeviceSpec
from cachecore.engine_group import EngineGroup
from cachecore.errors import CacheLookupError, EngineStateError, PlanError
from cachecore.group_memory import refuse_duplicate
from cachecore.plan_set import CachePlanSet
from cachecore.sleeping import Live, Sleep, check_level
from cachecore.stats import CopyStats, EngineStats
from cachecore.view import NamedCacheView, SpecViews

__all__ = ["GroupEngine"]

A = TypeVar("A")


class GroupEngine(Generic[A]):
    """Groups of one kind on one device. ``generation`` counts up whenever views handed out become invalid."""

    def __init__(
        self, plans: CachePlanSet, groups: Mapping[str, EngineGroup[A]], backend: CacheBackend[A], device: DeviceSpec
    ) -> None:
        self.plans = plans
        self.device = device
        self.generation = 1
        self._groups = dict(groups)
        self._backend = backend
        self._closed = False
        self._barred: str | None = None
        self._led = False
        self._sleep: Sleep[A] | None = None
        self._views: list[SpecViews[A]] = self._made_views()
        self._named: NamedCacheView[A] = NamedCacheView(self._views)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"asleep at level {self.sleep_level}" if self._sleep else "open"
        groups = [group for engine in self._engines() for group in engine._groups.values()]
        told = ", ".join(
            f"{one.plan.name} {one.num_blocks} {one.plan.unit}s"
            + (f" and {one.num_host_blocks} on the host" if one.num_host_blocks else "")
            for one in groups
        )
        return f"<{type(self).__name__} of backend {self._backend.name!r} on {self.device}, {state}: {told}>"

    @property
    def backend(self) -> CacheBackend[A]:
        """The backend that owns the memory."""
        return self._backend

    def group(self, name: str | None = None) -> EngineGroup[A]:
        """One group's memory and movement; the name may be left out when there is only one."""
        self._check_open()
        if name is None:
            if len(self._groups) != 1:
                raise PlanError(f"this engine has groups {', '.join(self._groups) or '(none)'}; say which with group=")
            return next(iter(self._groups.values()))
        try:
            return self._groups[name]
        except KeyError:
            raise CacheLookupError(
                f"group {name!r} does not exist; the groups are {', '.join(self._groups) or '(none)'}", group=name
            ) from None

    def allocation(self, *, group: str | None = None, host: bool = False) -> Any:
        """The allocation of one tier, for transfers and tests; None when there is no host tier."""
        found = self.group(group)
        return found.host if host else found.device

    def swap_out(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Move device blocks or slots to the host tier; ids are local to each side."""
        return self.group(group).swap_out(pairs)

    def swap_in(self, pairs: PairsLike, *, group: str | None = None) -> Completion:
        """Move host blocks or slots to the device; ids are local to each side."""
        return self.group(group).swap_in(pairs)

    @property
    def sleep_level(self) -> int:
        """0 while awake, else the level that :meth:`sleep` was called with."""
        return 0 if self._sleep is None else self._sleep.level

    def stats(self) -> EngineStats:
        """Bytes held, ways taken, and the reason each time a slower way was. Answers while asleep, too."""
        if self._sleep is None:
            self._check_open()
        groups = tuple(group.stats() for group in self._groups.values())
        for group in groups:
            group.saved_nbytes = 0 if self._sleep is None else self._sleep.saved_nbytes(group.group)
        slow = [(group.group, copy) for group in groups for copy in group.copies if copy.fallback]
        return EngineStats(
            self._backend.name,
            str(self.device),
            groups,
            sum(copy.num_calls for _, copy in slow),
            tuple(f"group {name!r}, {copy.direction}: {_why_slow(copy)}" for name, copy in slow),
            self.sleep_level,
        )

    def sleep(self, level: int = 1, live: Live = None) -> None:
        """Give the device its memory back until :meth:`wake`; transfers finish first, the host tier stays.

        Level 1 keeps the contents in host memory of their own, page-locked where there is such memory:
        of all blocks or slots, or of those in ``live`` (per group; a group that is not named keeps
        all). Level 2 drops them. Ordered after the caller's stream as a swap is; states sleep along.
        While asleep whatever needs memory raises, and ``generation`` has changed, unless the engine has
        stable addresses. Again at the same level does nothing; level 2 after 1 drops what was kept.

        Raises
        ------
        AllocationError
            When the host has no room for what level 1 keeps; the engine stays awake, nothing is lost.
        PlanError, CacheLookupError, BlockIndexError, TypeError
            For a level or blocks that there are not.
        """
        level = check_level(level, live)
        self._check_owner("sleep")
        if self._sleep is not None:
            self._sleep.again(level)
            return
        self._check_open()
        engines = self._engines()
        begun = Sleep([group for engine in engines for group in engine._groups.values()], level, live)
        for engine in engines:
            engine._sleep = begun
            engine._hide("this engine is asleep; call wake()", keep=begun.stable_addresses)
        begun.begin()

    def wake(self) -> None:
        """Take memory again, with the contents that level 1 kept and zeros otherwise. Awake already: nothing.

        Views are made anew; with stable addresses they are the same as before, and ``generation`` too.

        Raises
        ------
        AllocationError
            When the device has no room: bytes needed, bytes free. The engine stays asleep, nothing is lost.
        """
        self._check_owner("wake")
        if self._sleep is None:
            self._check_open()
            return
        engines, sleep = self._engines(), self._sleep
        found = sleep.end(lambda same: [engine._views_again(same=same) for engine in engines])
        for engine, (views, moved) in zip(engines, found, strict=True):
            engine._show(views, moved=moved)
        sleep.drop()  # last: an engine that is awake needs them no more, one that is asleep may have nothing else

    def close(self) -> None:
        """Wait for transfers and give all memory back. Twice is once; views handed out are invalid."""
        if self._closed:
            return
        self._closed = True
        self._hide("this engine is closed; open another with open_engine()", keep=False)
        failed: list[BaseException] = []
        sleep, self._sleep = self._sleep, None
        groups = list(self._groups.values())
        ends: list[Callable[[], None]] = [group.free for group in groups]
        if sleep is not None:
            ends.insert(0, partial(sleep.forget, groups))
        for end in ends:
            try:
                end()
            except BaseException as error:  # noqa: BLE001  # Ctrl-C too: every group is freed, then it is told
                failed.append(error)
        if failed:
            raise failed[0]

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_duplicate(f"a {type(self).__name__}")

    def _engines(self) -> list[GroupEngine[A]]:
        """All that sleep and wake as one."""
        return [self]

    def _made_views(self) -> list[SpecViews[A]]:
        return [views for group in self._groups.values() for views in group.views()]

    def _hide(self, reason: str, *, keep: bool) -> None:
        """Every use raises from now on; ``keep`` the views for :meth:`_show`."""
        self._barred = reason
        self._named.close(reason)
        if not keep:
            self._views = []
            self.generation += 1

    def _views_again(self, *, same: bool) -> tuple[list[SpecViews[A]], bool]:
        """The kept views where every address is the same, else new ones; whether those handed out moved now."""
        if self._views and same:
            return self._views, False
        return self._made_views(), bool(self._views)

    def _show(self, views: list[SpecViews[A]], *, moved: bool) -> None:
        """Hand out views again."""
        self.generation += moved
        self._views = views
        self._named.open(views)
        self._barred = self._sleep = None

    def _check_open(self) -> None:
        if self._barred is not None:
            raise EngineStateError(self._barred)

    def _check_owner(self, verb: str) -> None:
        if self._led:
            raise EngineStateError(f"these states belong to a CacheEngine, which they follow; call its {verb}()")


def _why_slow(copy: CopyStats) -> str:
    if copy.reason:
        return copy.reason
    told = "; ".join(f"{record}: {why}" for record, why in copy.passed_over) or "none is installed"
    return f"no block copy serves it ({told})"
