"""Accounting: memory() tells the truth, memory is called what it is, and a failed allocation leaves nothing taken."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from cachecore.backend import HOST, PINNED_HOST
from cachecore.device import DeviceSpec
from cachecore.errors import AllocationError
from cachecore.layout import CacheLayout
from cachecore.testing.checks import Check, check
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.levels.memory import dense_layout
from cachecore.testing.subject import Subject

__all__ = ["CHECKS", "free_nbytes"]

_MIB = 1 << 20


def free_nbytes(subject: Subject) -> int:
    """What is free where the subject's memory comes from, for comparing before with after.

    On the host what this process holds is compared: others take and give memory meanwhile, and a kernel
    that keeps freed pages in lists of each CPU counts them late.
    """
    gc.collect()
    subject.adapter().release(subject.device)
    statm = Path("/proc/self/statm")
    if subject.device.type == "cpu" and statm.exists():
        return -int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return subject.backend.memory(subject.device).free_nbytes


@check("memory", "accounts")
def accounts(subject: Subject) -> str | None:
    """memory() gives the device's own figures: an allocation lowers what is free, free() raises it again."""
    backend = subject.backend
    first = backend.memory(subject.device)
    if not 0 < first.free_nbytes <= first.total_nbytes:
        raise Fault("memory()", expected="0 < free <= total", found=tuple(first))
    told = f"{first.free_nbytes / 2**30:.2f} of {first.total_nbytes / 2**30:.2f} GiB free"
    if subject.device.type == "cpu":
        return f"{told}; the host's own figures follow late and count others, so allocations were not compared"
    size = min(256 * _MIB, first.free_nbytes // 8)
    layout = dense_layout(size // 4096)
    seen = []
    for _ in range(5):  # others may use the device meanwhile
        subject.adapter().release(subject.device)
        before = backend.memory(subject.device).free_nbytes
        allocation = backend.allocate(layout, 4096, subject.device)
        during = backend.memory(subject.device).free_nbytes
        backend.free(allocation)
        subject.adapter().release(subject.device)
        after = backend.memory(subject.device).free_nbytes
        taken, given = before - during, after - during
        if size // 2 < taken < 2 * size and given > size // 2:
            return told
        seen.append((taken, given))
    raise Fault(
        f"free bytes around an allocation of {size}",
        expected=f"about {size} less, and then as much more",
        found=", ".join(f"{taken} less and {given} more" for taken, given in seen),
        cause="a constant, a total without what others use, or a figure of this process alone",
    )


@check("memory", "refused-whole")
def refused_whole(subject: Subject) -> str | None:
    """What cannot be had is an AllocationError with its figures, and the pools taken before are given back."""
    backend = subject.backend
    entries, total = 16384, backend.memory(subject.device).total_nbytes
    first = min(256 * _MIB, backend.memory(subject.device).free_nbytes // 8)
    layout = dense_layout(first // entries, 2 * total // entries + 1)
    lost = 0
    for _ in range(5):
        before = free_nbytes(subject)
        _refuse(subject, layout, entries)
        lost = before - free_nbytes(subject)
        if lost < first // 2:
            return None
    raise Fault(
        "free bytes after a refused allocation",
        expected="as many as before",
        found=f"{lost} less",
        cause="the first pool, already taken, was not given back when the second failed",
    )


def _refuse(subject: Subject, layout: CacheLayout, entries: int) -> None:
    needed = layout.reserved_nbytes(entries)
    try:
        subject.backend.free(subject.backend.allocate(layout, entries, subject.device))
    except AllocationError as error:
        figures = {str(layout.buffer_nbytes(pool, entries)) for pool in range(2)} | {str(needed)}
        if not any(figure in str(error) for figure in figures):
            raise Fault(
                "the message of an AllocationError",
                expected=f"pool, bytes ({needed} in all), device and free bytes",
                found=str(error),
            ) from error
        return
    except Exception as error:
        raise Fault(f"allocating {needed} bytes", expected="an AllocationError", found=repr(error)) from error
    raise Skipped(f"{needed} bytes were given, twice what memory() has in total")


@check("memory", "kinds")
def kinds(subject: Subject) -> str | None:
    """Memory is called what it is: the device's type, or the host's, page-locked where that can be had."""
    backend, layout = subject.backend, dense_layout(64)
    told = []
    for device, pinned in ((subject.device, False), ("cpu", False), ("cpu", True)):
        target = subject.device if device is subject.device else DeviceSpec(str(device))
        able = pinned and subject.reason_against("pinned_host") is None
        try:
            allocation = backend.allocate(layout, 8, target, pinned=pinned)
        except AllocationError as error:
            raise Fault(
                f"512 bytes on {target}{', page-locked' if pinned else ''}",
                expected=f"memory{', as pinned_host is declared' if able else ''}",
                found=str(error),
                cause="pinned_host declared for every accelerator: some have no page-locked memory",
            ) from error
        kind, locked = allocation.memory_kind, subject.adapter().pinned(allocation.buffers[0])
        backend.free(allocation)
        expected = target.type if target.type != "cpu" else PINNED_HOST if able else HOST
        if kind != expected or (able and locked is False):
            raise Fault(
                f"memory kind on {target}{', page-locked' if pinned else ''}",
                expected=expected,
                found=f"{kind}{', not page-locked' if able and locked is False else ''}",
                cause="copies are chosen by it, and pinned_host says what was promised",
            )
        told.append(kind)
    return ", ".join(told)


CHECKS: tuple[Check, ...] = (accounts, refused_whole, kinds)
