"""What the order checks work on: an engine, a row of it, and streams that can be kept busy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cachecore.engine import CacheEngine
from cachecore.testing.arrays import Streams
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.levels.copy import places_of
from cachecore.testing.samples import BLOCK_CASES
from cachecore.testing.subject import Subject

__all__ = ["DELAY_S", "Bench", "ready_bench"]

DELAY_S = 0.2
"""Long against everything that the host does meanwhile."""

_NUM_BLOCKS, _NUM_HOST_BLOCKS = 6, 4


@dataclass(slots=True)
class Bench:
    """An engine, its streams, and one row whose blocks are written and read in order."""

    engine: CacheEngine[Any]
    streams: Streams
    view: Any
    subject: Subject

    def look_again(self) -> None:
        """Take the row's view anew, as after a sleep."""
        spec = self.engine.plans.blocks[0].specs[0]
        self.view = self.engine.block_caches.layer(spec.name, spec.row_ids[0])

    def data(self, byte: int) -> bytes:
        """One entry's bytes, all alike."""
        plan = self.engine.plans.blocks[0]
        return bytes([byte]) * (plan.specs[0].page_nbytes * plan.layout.pages_per_entry)

    def put(self, block: int, byte: int) -> None:
        """Write a device block, at once."""
        self.streams.writer(self.view, block, self.data(byte))()
        self.streams.synchronize()

    def put_host(self, block: int, byte: int) -> None:
        """Write row 0 of a host block, at once."""
        at = places_of(self.engine.plans.blocks[0], self.engine.allocation(host=True)).payload(0, 0, block, 0)
        self.subject.backend.write(self.engine.allocation(host=True), at.pool, at.start, bytes([byte]) * at.nbytes)

    def device(self, block: int) -> bytes:
        """The row's entry of a device block, after all work."""
        reader = self.streams.reader(self.view, block)
        reader.queue()
        self.streams.synchronize()
        return reader.result()

    def host(self, block: int) -> bytes:
        """Row 0 of a host block."""
        at = places_of(self.engine.plans.blocks[0], self.engine.allocation(host=True)).payload(0, 0, block, 0)
        return self.subject.backend.read(self.engine.allocation(host=True), at.pool, at.start, at.nbytes)

    def expect(self, what: str, found: bytes, byte: int, cause: str) -> None:
        """All bytes are ``byte``."""
        wrong = next((at for at, one in enumerate(found) if one != byte), None)
        if wrong is not None or not found:
            place = 0 if wrong is None else wrong
            raise Fault(
                what,
                expected=f"{byte:#04x}",
                found=f"{found[place]:#04x}" if found else "nothing",
                at=f"byte {place} of {len(found)} of the row",
                cause=cause,
            )


@contextmanager
def ready_bench(subject: Subject, *, stable_addresses: bool = False) -> Iterator[Bench]:
    """Blocks of one entry; skipped where work runs in the caller anyway."""
    subject.need("byte_addressable")
    if stable_addresses:
        subject.need("stable_addresses")
    streams = subject.adapter().streams(subject.device)
    plan = subject.plan(BLOCK_CASES[0])
    counts = _NUM_BLOCKS, _NUM_HOST_BLOCKS
    with subject.open_groups([plan], *counts, stable_addresses=stable_addresses) as engine:
        bench = Bench(engine, streams, None, subject)
        bench.look_again()
        _check_delay(bench)
        try:
            yield bench
        finally:
            streams.synchronize()


def _check_delay(bench: Bench) -> None:
    """Skip where a delay keeps the host; asked again, since a busy machine may have kept it."""
    for _ in range(3):
        bench.put(0, 1)
        write = bench.streams.writer(bench.view, 0, bench.data(2))
        started = time.perf_counter()
        bench.streams.delay(DELAY_S)
        write()
        queued = time.perf_counter() - started
        bench.streams.synchronize()
        if queued < DELAY_S / 2 < time.perf_counter() - started:
            return
    raise Skipped("queued work runs in the caller on this device, so nothing can overtake")
