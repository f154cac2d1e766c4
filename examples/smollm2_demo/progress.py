"""Progress on standard error: a moving line on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["Stage"]


class Stage:
    """One long step. ``tick`` redraws its line on a terminal, five times a second at most."""

    def __init__(self, title: str, total: int = 0) -> None:
        self.title = title
        self.total = total
        self.done = 0
        self._started = time.perf_counter()
        self._drawn = 0.0

    def __enter__(self) -> Stage:
        self._show("...", end="" if sys.stderr.isatty() else "\n")
        return self

    def tick(self) -> None:
        """One of ``total`` parts is done."""
        self.done += 1
        now = time.perf_counter()
        if sys.stderr.isatty() and now - self._drawn > 0.2:
            self._drawn = now
            self._show(f"{self.done}/{self.total}", end="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show("stopped" if kind else f"done in {time.perf_counter() - self._started:.1f} s", end="\n")

    def _show(self, text: str, *, end: str) -> None:
        lead = "\r\x1b[K" if sys.stderr.isatty() else ""
        print(f"{lead}  {self.title}: {text}", end=end, file=sys.stderr, flush=True)
