"""What is measured: pools of real models, as rows times bytes of a kernel page."""

from __future__ import annotations

from dataclasses import dataclass

from cachecore import (
    BlockCacheGeometry,
    CachePlanSet,
    CacheTensorSpec,
    LayoutHints,
    LayoutPolicy,
    plan_from_specs,
)

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``pools`` holds (rows, bytes of a kernel page); ``neighbours`` blocks at a time stand side by side."""

    name: str
    model: str
    pools: tuple[tuple[int, int], ...]
    pages_per_block: int = 1
    neighbours: int = 1

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(number, bytes) of a block's runs in the device's pools."""
        return tuple((rows, page * self.pages_per_block) for rows, page in self.pools)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        return sum(count * nbytes for count, nbytes in self.runs)

    @property
    def run_nbytes(self) -> int:
        """Bytes of a run, on average."""
        return self.block_nbytes // sum(count for count, _ in self.runs)

    def plans(self, policy: LayoutPolicy, device: str, backend: str, hints: LayoutHints | None = None) -> CachePlanSet:
        """One group with a row pool for each entry of ``pools`` and a block-major host tier, or as ``hints`` ask."""
        specs = [
            CacheTensorSpec(
                name=f"pool_{number}",
                shape=(page,),
                dtype="uint8",
                row_ids=tuple(range(rows)),
                consumer_rows=tuple(range(rows)),
            )
            for number, (rows, page) in enumerate(self.pools)
        ]
        plan = plan_from_specs(specs, BlockCacheGeometry(self.pages_per_block, 1), policy, hints=hints)
        return CachePlanSet((plan,), device, backend)


_FIVE = ((61, 16384), (30, 4096), (30, 8448), (61, 2048), (20, 512))

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("32x262144", "8B, grouped-query attention, block 64", ((32, 262144),)),
        Scenario("32x65536", "8B, grouped-query attention, block 16", ((32, 65536),)),
        Scenario("61x41984+61x8448", "MLA in fp8, and its index", ((61, 41984), (61, 8448))),
        Scenario("80x8192", "70B, one of 8 ranks, block 16", ((80, 8192),)),
        Scenario("five-pools", "five pools, two pages a block", _FIVE, pages_per_block=2),
        Scenario("80x8192-runs-of-4", "as 80x8192, blocks in fours", ((80, 8192),), neighbours=4),
        Scenario("80x8192-runs-of-16", "as 80x8192, blocks in sixteens", ((80, 8192),), neighbours=16),
    )
}
"""By name. A new one is one line."""
