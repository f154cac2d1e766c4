"""Worker threads for copies that hold no GIL while they move bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["MAX_THREADS", "Run", "Task", "num_copy_threads", "run_in_threads"]

Run = tuple[int, int, int]
"""``(source block, destination block, number of neighbouring blocks)``."""

Task = Callable[[], None]
"""A share of a copy, for one thread."""

MAX_THREADS = 8
"""More cores than this do not copy faster: a socket's memory is busy before."""

LEAST_NBYTES = 2 << 20
"""A thread is woken for no less: waking one costs some 50 microseconds, in which one core copies 1 MB."""

_executors: list[ThreadPoolExecutor] = []
os.register_at_fork(after_in_child=_executors.clear)  # a child has none of its parent's threads


def num_copy_threads(nbytes: int) -> int:
    """Threads to move ``nbytes`` with: as many as torch may use, each with enough to outweigh waking it."""
    return max(1, min(torch.get_num_threads(), MAX_THREADS, nbytes // LEAST_NBYTES))


def run_in_threads(tasks: Sequence[Task]) -> None:
    """Run all tasks, the first in the caller's thread; returns, or raises, when none runs any more."""
    if len(tasks) == 1:
        tasks[0]()
        return
    if not _executors:
        _executors.append(ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="cachecore-cpu"))
    futures = [_executors[0].submit(task) for task in tasks[1:]]
    try:
        tasks[0]()
    finally:
        for future in futures:
            future.exception()  # wait, so that no task writes after the copy returned
    for future in futures:
        future.result()
