"""Benchmarks of block copies and swaps on a torch device: what ``cachecore bench copy|swap`` runs.

Every way moves the same blocks of the same memory in turn, after its bytes were checked. The limit
of a copy is one strided ``copy_`` of as many runs of the same length (every second block onto its
neighbour); a swap between a device and the host has one contiguous transfer of page-locked memory.
Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cachecore_torch_default.bench.scenarios import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "run"]

_QUICK_NBYTES = 128 << 20
"""A quick look moves no more at once, though more than caches hold: most of its time was taking memory."""

_QUICK_PAIRS = 16
"""Pairs that a quick look has at least, and a multiple of which it has: blocks stand in sixteens at most."""


def run(
    what: str,
    *,
    device: str = "cpu",
    backend: str | None = None,
    quick: bool = False,
    progress: Callable[[str], object] = lambda message: None,
    own_copies: bool = False,
    scenarios: Sequence[str] = (),
    num_pairs: int = 64,
    one_run_per_block: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield one result a scenario and way, the engine's own way first.

    On the CPU everything is measured with one thread and with two; a result is taken where its way is
    faster, against the limit with as many threads, and ``ratio_by_threads`` tells both.
    ``scenarios`` names some of :data:`SCENARIOS`. With ``own_copies`` the block copies of the backend's
    own plugin go before those of others; else they are ranked as for any engine. ``quick`` moves fewer
    of large blocks. With ``one_run_per_block`` the scenarios are planned with that hint.

    Raises
    ------
    PlanError
        When the backend's policy does not lay blocks out as one run.
    PluginError
        When a way moved a wrong byte, or the backend's memory is no torch tensors.
    """
    from cachecore_torch_default.bench.measure import measure_scenario

    named = [SCENARIOS[name] for name in scenarios]
    wanted = named or [one for one in SCENARIOS.values() if what == "copy" or one.neighbours == 1]
    directions = {"copy": ("copy",), "swap": ("swap_out", "swap_in")}[what]
    for scenario in wanted:
        pairs = _quick_pairs(scenario, num_pairs) if quick else num_pairs
        for direction in directions:
            progress(f"{direction} {scenario.name}")
            yield from measure_scenario(
                scenario,
                direction,
                device=device,
                backend=backend,
                own_copies=own_copies,
                num_pairs=pairs,
                quick=quick,
                one_run_per_block=one_run_per_block,
            )


def _quick_pairs(scenario: Scenario, num_pairs: int) -> int:
    fitting = _QUICK_NBYTES // scenario.block_nbytes // _QUICK_PAIRS * _QUICK_PAIRS
    return min(num_pairs, max(_QUICK_PAIRS, fitting))
