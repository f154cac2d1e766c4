"""A copy that is done when the test says so, as one on a stream of its own is done when the device says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachecore import BlockCopyInfo, BlockPairs, Completion, CopyContext
from cachecore.transfer import ByteCopy


class HeldWork:
    """Bytes that move when :meth:`finish` or :meth:`synchronize` is called."""

    def __init__(self, move: Any, pairs: BlockPairs, after: Sequence[Completion]) -> None:
        self._move = move
        self.pairs = list(pairs)
        self.after = tuple(after)
        self.failure: Exception | None = None
        self.finished = False

    def finish(self) -> None:
        """Move the bytes, after all work that comes first."""
        if self.failure is not None:
            raise self.failure
        if not self.finished:
            for earlier in self.after:
                earlier.synchronize()
            self._move()
            self.finished = True

    def wait(self, stream: object | None = None) -> None:
        """Nothing to make wait: there are no streams."""

    def synchronize(self) -> None:
        """Block until done."""
        self.finish()

    def done(self) -> bool:
        """Whether the bytes have moved."""
        return self.finished


class HeldCopies:
    """Announces held copies and keeps what they queued, in order."""

    def __init__(self, name: str = "held", priority: int = 50) -> None:
        self.queued: list[HeldWork] = []
        self.on_device_ids: list[Any] = []
        self.broken = False
        self.num_built = 0
        self.info = BlockCopyInfo(name, priority, lambda src, dst: None, self._build)

    def _build(self, context: CopyContext) -> HeldCopy:
        self.num_built += 1
        return HeldCopy(self, context)


class HeldCopy(ByteCopy):
    """Queues instead of copying."""

    path = "held"
    workspace_nbytes = 64

    def __init__(self, owner: HeldCopies, context: CopyContext) -> None:
        super().__init__(context)
        self._owner = owner

    def __call__(self, pairs: BlockPairs, after: Sequence[Completion] = ()) -> Completion:
        """Queue."""
        if self._owner.broken:
            raise OSError("the stream is gone")
        kept = BlockPairs(pairs.src, pairs.dst)
        work = HeldWork(lambda: ByteCopy.__call__(self, kept), kept, after)
        self._owner.queued.append(work)
        return work

    def on_device(self, ids: Any) -> None:
        """Remember the ids."""
        self._owner.on_device_ids.append(ids)
