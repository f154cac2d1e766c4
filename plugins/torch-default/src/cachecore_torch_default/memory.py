"""Host memory to own, free and total bytes of any torch device from the device's own module, and refusals of both."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from cachecore import AllocationError, CacheLayout, EngineStateError, MemoryInfo

__all__ = ["check_fits", "device_memory", "host_memory", "host_pages", "memory_refused", "return_cached"]


def device_memory(device: torch.device) -> MemoryInfo:
    """Free and total bytes of ``device``.

    Raises
    ------
    EngineStateError
        When the device's torch module does not tell.
    """
    if device.type == "cpu":
        return host_memory()
    module = torch.get_device_module(device)
    if hasattr(module, "mem_get_info"):
        free, total = module.mem_get_info(device)
        return MemoryInfo(int(free), int(total))
    if hasattr(module, "recommended_max_memory"):  # Apple's unified memory
        total = int(module.recommended_max_memory())
        return MemoryInfo(max(0, total - int(module.driver_allocated_memory())), total)
    raise EngineStateError(
        f"torch.{device.type} has no mem_get_info(), so the free memory of {device} is unknown; "
        "pass the memory to use explicitly"
    )


def host_memory(root: Path = Path("/")) -> MemoryInfo:
    """Bytes this process may still take without swapping, and in total; a container's limit counts."""
    total = _pages("SC_PHYS_PAGES")
    free = _pages("SC_AVPHYS_PAGES") or total  # macOS does not tell
    meminfo = root / "proc/meminfo"
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        # MemAvailable also counts page cache that the kernel gives back; see proc(5).
        free = int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else free
    limit, used = _cgroup(root)
    if limit is not None:
        total = min(total, limit)
        free = min(free, max(0, limit - used))
    return MemoryInfo(free, total)


def _pages(name: str) -> int:
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") if name in os.sysconf_names else 0


def _cgroup(root: Path) -> tuple[int | None, int]:
    """The container's limit and what counts against it, without the page cache that can be dropped (cgroup v2)."""
    folder = root / "sys/fs/cgroup"
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None, 0
    if not limit.isdigit():
        return None, 0
    return int(limit), used - int(stat.get("inactive_file", 0))


def host_pages(nbytes: int) -> Tensor:
    """Zeroed pages of the operating system as ``uint8[nbytes]``: page-aligned, exact, given back with the tensor.

    torch's own CPU allocator aligns to 64 bytes only. Private, so that a forked child writes its own
    copy. Touched here, with all of torch's threads: memory that is promised but not there is then
    missed here, and the next allocation sees what is left.
    """
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    _keep_forks_alive()
    if not hasattr(mmap, "MAP_PRIVATE"):  # Windows maps anonymous pages privately
        return torch.frombuffer(mmap.mmap(-1, nbytes), dtype=torch.uint8).zero_()
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without transparent huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)  # fewer TLB misses in copies of scattered blocks
    return torch.frombuffer(pages, dtype=torch.uint8).zero_()


@cache
def _keep_forks_alive() -> None:
    """Let torch use one thread in a process that is forked from this one, until it is told otherwise there.

    The threads that torch starts for the first large operation on the CPU (here: zeroing pages) are not there
    in a child, and OpenMP waits for them forever. The hook runs in the child alone; the parent keeps its threads.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_use_one_thread)


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def check_fits(layout: CacheLayout, num_entries: int, device: torch.device) -> None:
    """Refuse before asking: an operating system may promise more than it has, and kill the process later."""
    free = device_memory(device).free_nbytes
    taken = 0
    for index, _ in enumerate(layout.pools):
        taken += layout.buffer_nbytes(index, num_entries)
        if taken > free:
            raise memory_refused(
                layout, index, num_entries, device, f"all pools take {layout.reserved_nbytes(num_entries)} bytes"
            )


def return_cached(device: torch.device) -> None:
    """Let the device have what torch's caching allocator keeps for later."""
    module = torch.get_device_module(device)
    if hasattr(module, "empty_cache"):
        module.empty_cache()


def memory_refused(
    layout: CacheLayout, pool: int, num_entries: int, device: torch.device, why: str, *, pinned: bool = False
) -> AllocationError:
    """What to raise when ``pool`` cannot be had: how many bytes, where, how many are free, and what to do."""
    nbytes, needed = layout.buffer_nbytes(pool, num_entries), layout.reserved_nbytes(num_entries)
    try:
        free = device_memory(device).free_nbytes
    except EngineStateError:
        free = None
    what, remedy = "bytes", "Use fewer blocks"
    if pinned:
        what, remedy = "page-locked bytes", "Use fewer host blocks, or let this process lock more memory (ulimit -l)"
    elif free is not None and needed <= free:
        remedy += ", or see what the reason in brackets says: enough bytes are free"
    return AllocationError(
        f"pool {pool} of layout {layout.kind!r} needs {nbytes} {what} for {num_entries} entries on {device}, "
        f"where {'an unknown number of' if free is None else free} bytes are free ({why}); "
        f"nothing is kept. {remedy}",
        pool=pool,
        nbytes=nbytes,
        needed_nbytes=needed,
        free_nbytes=free,
        device=str(device),
    )
