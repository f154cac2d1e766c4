"""Device-resident ids: ``int64[2, n]`` on the device, -1 for padding, and captured in graphs."""

from __future__ import annotations

from collections.abc import Sequence

from cachecore.errors import EngineStateError
from cachecore.testing.checks import Check, check
from cachecore.testing.contents import check_copy, dump, fill
from cachecore.testing.faults import Fault
from cachecore.testing.levels.copy import places_of
from cachecore.testing.samples import BLOCK_CASES, MOVED_CASES, BlockCase
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_NUM_BLOCKS = 9
Pairs = Sequence[tuple[int, int]]


def _copies(subject: Subject, case: BlockCase, batches: Sequence[Pairs]) -> str | None:
    subject.need("device_ids")
    subject.need("byte_addressable")
    plan, adapter = subject.plan(case), subject.adapter()
    with subject.open(plan, _NUM_BLOCKS) as engine, subject.watch(engine, "device_ids"):
        allocation = engine.allocation()
        places = places_of(plan, allocation)
        for pairs in batches:
            ids = adapter.device_ids(pairs, subject.device)
            before = fill(subject.backend, allocation, 12)
            try:
                engine.copy_blocks_on_device(ids)
            except EngineStateError as error:
                raise Fault(
                    "copy_blocks_on_device()",
                    expected="a copy, as device_ids is declared",
                    found=str(error),
                    cause="the copy that was chosen has no on_device(), or the capability is another record's",
                ) from error
            after = dump(subject.backend, allocation)
            real = [(src, dst) for src, dst in pairs if src >= 0 and dst >= 0]
            check_copy(f"copy with device-resident ids {list(pairs)}", places, places, before, before, after, real)
        return engine.stats().groups[0].copies[0].path


@check("device-ids", "no-padding", MOVED_CASES)
def no_padding(subject: Subject, case: BlockCase) -> str | None:
    """The pairs named are copied."""
    return _copies(subject, case, [[(0, 8)], [(3, 0), (3, 1), (4, 7), (5, 6)]])


@check("device-ids", "padding", MOVED_CASES)
def padding(subject: Subject, case: BlockCase) -> str | None:
    """Pairs of -1 are ignored at the end, at the start and in between; a pair is padding if either id is -1."""
    return _copies(
        subject,
        case,
        [
            [(1, 5), (2, 6), (-1, -1), (-1, -1)],
            [(-1, -1), (8, 0)],
            [(1, 5), (-1, -1), (2, 6), (-1, -1), (4, 7)],
            [(3, -1), (1, 2), (-1, 4)],
        ],
    )


@check("device-ids", "nothing-but-padding", MOVED_CASES)
def nothing_but_padding(subject: Subject, case: BlockCase) -> str | None:
    """A batch of padding alone changes nothing: no block 0, no last block."""
    return _copies(subject, case, [[(-1, -1)], [(-1, -1)] * 33])


@check("device-ids", "many")
def many(subject: Subject) -> str | None:
    """As many as fit, half of them padding."""
    pairs = [(number % 4, 4 + number // 2) if number % 2 else (-1, -1) for number in range(10)]
    return _copies(subject, BLOCK_CASES[2], [pairs])


@check("device-ids", "in-a-graph")
def in_a_graph(subject: Subject) -> str | None:
    """Captured once, replayed with other ids: the ids are read when the graph runs."""
    subject.need("device_ids")
    subject.need("graph_capture")
    subject.need("byte_addressable")
    adapter, plan = subject.adapter(), subject.plan(BLOCK_CASES[1])
    with subject.open(plan, _NUM_BLOCKS) as engine:
        allocation = engine.allocation()
        places = places_of(plan, allocation)
        ids = adapter.device_ids([(-1, -1)] * 3, subject.device)
        try:
            replay = adapter.capture(subject.device, lambda: engine.copy_blocks_on_device(ids))
        except RuntimeError as error:
            raise Fault(
                "capturing copy_blocks_on_device() in a graph",
                expected="a graph, as graph_capture is declared",
                found=str(error).partition("\n")[0],
                cause="a synchronisation, an event or an allocation outside the graph's pool inside the copy",
            ) from error
        for pairs in ([(0, 5), (1, 6), (-1, -1)], [(-1, -1), (8, 2), (4, 3)]):
            before = fill(subject.backend, allocation, 13)
            adapter.set_ids(ids, pairs)
            replay()
            after = dump(subject.backend, allocation)
            real = [pair for pair in pairs if min(pair) >= 0]
            check_copy(f"replayed copy with ids {pairs}", places, places, before, before, after, real)
    return None


CHECKS: tuple[Check, ...] = (no_padding, padding, nothing_but_padding, many, in_a_graph)
