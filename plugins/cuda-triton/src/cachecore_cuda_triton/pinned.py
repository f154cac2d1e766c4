"""Exact-size page-locked host memory: pages touched in parallel, registered at once, given back with the tensor.

torch's own page-locked allocator rounds up to a power of two: 10 GiB take 16.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import torch
from torch import Tensor

from cachecore import AllocationError

__all__ = ["pinned_pages"]

_TOUCH_NBYTES = 1 << 30
"""Bytes that one thread touches at a time; the first touch of a page is what takes long."""

_PROGRESS_NBYTES = 8 << 30
"""Pools from this size on show progress: touching takes about a second for 4 GiB a thread."""

_PORTABLE_MAPPED = 1 | 2
"""``cudaHostRegisterPortable | cudaHostRegisterMapped``."""


def pinned_pages(nbytes: int, *, device: torch.device) -> Tensor:
    """Zeroed ``uint8[nbytes]``, page-aligned and page-locked, with not a page more than it takes.

    Raises
    ------
    AllocationError
        When the system's or the driver's limit is hit, naming it; what was registered is given back.
    """
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without transparent huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    tensor = torch.frombuffer(pages, dtype=torch.uint8)
    spans = range(0, nbytes, _TOUCH_NBYTES)
    tell = _progress(nbytes)
    with ThreadPoolExecutor(max(1, min(len(spans), os.cpu_count() or 1, 16))) as workers:
        for done, _ in enumerate(workers.map(lambda at: tensor[at : at + _TOUCH_NBYTES].zero_(), spans), start=1):
            tell(done, len(spans))
    address = tensor.data_ptr()
    with torch.cuda.device(device):
        # One registration for the whole pool: the driver's batched copies refuse a piece that crosses two.
        code = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE_MAPPED))
    if code:
        raise AllocationError(_refusal(code, nbytes), nbytes=nbytes, code=code, device="host")
    weakref.finalize(tensor.untyped_storage(), _release, address, pages)
    return tensor


def _release(address: int, pages: mmap.mmap) -> None:
    if not sys.is_finalizing():  # else the process gives everything back, and the driver may be gone already
        torch.cuda.cudart().cudaHostUnregister(address)
    del pages


def _refusal(code: int, nbytes: int) -> str:
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
    except ImportError:
        limit = "unknown"
    return (
        f"page-locking {nbytes} bytes of host memory failed with CUDA error {code}; the limit on locked "
        f"memory (ulimit -l) is {limit}. Raise it, or use fewer host blocks"
    )


def _progress(nbytes: int) -> Callable[[int, int], None]:
    started = time.monotonic()
    shown = nbytes >= _PROGRESS_NBYTES and sys.stderr.isatty()

    def tell(done: int, total: int) -> None:
        if shown:
            end = "\n" if done == total else "\r"
            seconds = time.monotonic() - started
            sys.stderr.write(f"touching host memory to lock: {done} of {total} GiB, {seconds:.0f} s{end}")
            sys.stderr.flush()

    return tell
