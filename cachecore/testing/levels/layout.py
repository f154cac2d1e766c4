"""Layout algebra: what the policy returns is proved twice, by the core and by the kit's own arithmetic."""

from __future__ import annotations

import json
from collections.abc import Sequence

from cachecore.errors import CacheCoreError, LayoutError, PlanError
from cachecore.kv import QUANT_POLICIES
from cachecore.layout import CacheLayout
from cachecore.plan import plan_from_specs
from cachecore.plan_set import CachePlanSet
from cachecore.policy import KvStorage, LayoutHints
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec
from cachecore.state_plan import state_specs
from cachecore.testing.checks import Check, check
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.places import prove
from cachecore.testing.samples import BLOCK_CASES, STATE_CASES, BlockCase, StateCase, random_specs
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

Specs = Sequence[CacheTensorSpec]
_NUM_RANDOM = 60


def _both_tiers(subject: Subject, specs: Specs, geometry: BlockCacheGeometry, hints: LayoutHints) -> list[CacheLayout]:
    """The device and the host layout, each proved by the core too."""
    policy = subject.policy
    device = policy.select_block_layout(specs, geometry, hints)
    _validated(device, specs, "device layout", host=False)
    host = policy.select_host_layout(specs, geometry, device, hints)
    _validated(host, specs, "host layout", host=True)
    return [device, host]


def _validated(layout: object, specs: Specs, what: str, *, host: bool) -> None:
    if not isinstance(layout, CacheLayout):
        raise Fault(what, expected="a CacheLayout", found=repr(layout))
    try:
        layout.validate(specs, host=host)
    except LayoutError as error:
        raise Fault(
            f"{what} is refused by the core",
            expected="every row placed once, apart from all others, aligned as claimed",
            found=str(error),
            cause="rows or scales forgotten on one tier, an offset of the wrong row, padding where none may be",
        ) from error


@check("layout", "block", BLOCK_CASES)
def block_layouts(subject: Subject, case: BlockCase) -> str | None:
    """Every row of a block group stands once and apart, on both tiers."""
    geometry = subject.geometry(case)
    specs = case.specs(geometry.page_size)
    device, host = _both_tiers(subject, specs, geometry, LayoutHints())
    prove(device, specs, geometry.pages_per_block, "device layout")
    prove(host, specs, geometry.pages_per_block, "host layout")
    for spec, rows in zip(specs, device.slices, strict=True):
        for row, place in enumerate(rows):
            if spec.per_row_contiguous and place.nbytes != device.pools[place.pool].inner:
                raise Fault(
                    f"cache {spec.name!r} row {row} asked for contiguous pages",
                    expected=f"pages {place.nbytes} bytes apart",
                    found=f"{device.pools[place.pool].inner}",
                    cause="the kernel that asked would read its neighbours",
                )
    return f"{device.kind}; host {host.kind}"


@check("layout", "block-at-random")
def block_layouts_at_random(subject: Subject) -> str | None:
    """Random specs, dtypes, alignments and pages, the same ones each time."""
    refused = 0
    for seed in range(_NUM_RANDOM):
        specs, pages = random_specs(seed)
        case = BlockCase(f"random {seed}", lambda page, specs=specs: specs, pages)  # type: ignore[misc]  # a default
        try:
            geometry = subject.geometry(case)
        except Skipped:
            refused += 1
            continue
        device, host = _both_tiers(subject, specs, geometry, LayoutHints())
        prove(device, specs, pages, f"device layout of random specs {seed}")
        prove(host, specs, pages, f"host layout of random specs {seed}")
    if refused == _NUM_RANDOM:
        raise Skipped("the policy refuses the geometry of all of them")
    return f"{_NUM_RANDOM - refused} plans"


@check("layout", "states", STATE_CASES)
def state_layouts(subject: Subject, case: StateCase) -> str | None:
    """Every row of a state group stands once and apart, on both tiers."""
    specs, hints = state_specs(case.requests), LayoutHints(one_run_per_block=case.one_run)
    device = subject.policy.select_state_layout(specs, hints)
    _validated(device, specs, "state layout", host=False)
    host = subject.policy.select_state_host_layout(specs, device, hints)
    _validated(host, specs, "host layout of states", host=True)
    prove(device, specs, 1, "state layout")
    prove(host, specs, 1, "host layout of states")
    return f"{device.kind}; host {host.kind}"


@check("layout", "same-again", BLOCK_CASES)
def same_again(subject: Subject, case: BlockCase) -> str | None:
    """The same specs are laid out the same each time, and survive JSON bit for bit."""
    plan, again = subject.plan(case), subject.plan(case)
    if plan != again:
        raise Fault(
            "two plans of the same specs differ",
            expected=json.dumps(plan.layout.to_json()),
            found=json.dumps(again.layout.to_json()),
            cause="iteration over a set, or state kept in the policy",
        )
    plans = CachePlanSet((plan,), str(subject.device), subject.info.name)
    if CachePlanSet.loads(plans.dumps()) != plans:
        raise Fault("a plan read back from JSON", expected="the plan that was written", found="another")
    return None


@check("layout", "base-alignment-hint", BLOCK_CASES)
def base_alignment(subject: Subject, case: BlockCase) -> str | None:
    """A transfer that needs pools at 2 MiB gets them, on both tiers."""
    geometry = subject.geometry(case)
    specs = case.specs(geometry.page_size)
    wanted = 2 << 20
    layouts = _both_tiers(subject, specs, geometry, LayoutHints(base_alignment=wanted))
    for tier, layout in zip(("device", "host"), layouts, strict=True):
        for number, pool in enumerate(layout.pools):
            if pool.entry_nbytes and pool.base_alignment % wanted:
                raise Fault(
                    f"base alignment of pool {number} of the {tier} layout, with LayoutHints(base_alignment={wanted})",
                    expected=f"a multiple of {wanted}",
                    found=pool.base_alignment,
                    cause="hints not passed on to the layout functions",
                )
    return None


@check("layout", "one-run-hint", BLOCK_CASES)
def one_run(subject: Subject, case: BlockCase) -> str | None:
    """Asked for blocks of one run, the layout is sound, or refused for rows that must be contiguous."""
    geometry = subject.geometry(case)
    specs = case.specs(geometry.page_size)
    try:
        device, host = _both_tiers(subject, specs, geometry, LayoutHints(one_run_per_block=True))
    except PlanError as error:
        return f"refused: {error}"
    prove(device, specs, geometry.pages_per_block, "device layout, one run a block")
    prove(host, specs, geometry.pages_per_block, "host layout, one run a block")
    runs = device.num_runs
    return None if runs == 1 else f"not honoured: a block is {runs} runs in layout {device.kind}"


@check("layout", "formats")
def formats(subject: Subject) -> str | None:
    """Every K/V format has an axis order and a storage, or a reason why not."""
    refused = []
    for fmt in sorted({*QUANT_POLICIES.values(), "no-such-format"}):
        stored = subject.policy.storage(fmt)
        if isinstance(stored, str):
            refused.append(fmt)
            if not stored:
                raise Fault(f"storage({fmt!r})", expected="the reason why not", found="an empty string")
            continue
        if not isinstance(stored, KvStorage):
            raise Fault(f"storage({fmt!r})", expected="KvStorage, or the reason why not", found=repr(stored))
        order = subject.policy.kv_order(fmt)
        if sorted(order) != ["head", "other", "token"]:
            raise Fault(f"kv_order({fmt!r})", expected="token, head and other, once each", found=repr(order))
    if "no-such-format" not in refused:
        raise Fault(
            "storage('no-such-format')",
            expected="the reason why not",
            found="a storage",
            cause="unknown formats are stored as if plain",
        )
    refused.remove("no-such-format")
    return f"refuses {', '.join(refused)}" if refused else "holds every format"


@check("layout", "geometries")
def geometries(subject: Subject) -> str | None:
    """A geometry that the kernels cannot take is refused with a PlanError that says why; some are taken."""
    taken, refused = [], []
    for page in (1, 4, 16, 64, 256):
        for pages in (1, 2, 4):
            geometry = BlockCacheGeometry(page * pages, page)
            try:
                plan_from_specs(BLOCK_CASES[0].specs(page), geometry, subject.policy)
            except PlanError as error:
                refused.append(f"{page * pages}/{page}")
                if not str(error):
                    raise Fault(f"refusal of geometry {geometry}", expected="a reason", found="none") from error
            except CacheCoreError as error:
                raise Fault(f"geometry {geometry}", expected="a plan, or a PlanError", found=repr(error)) from error
            else:
                taken.append(f"{page * pages}/{page}")
    if not taken:
        raise Fault("geometries that the policy takes", expected="at least one of 15", found="none")
    return f"takes {len(taken)} of 15" + (f", refuses {', '.join(refused)}" if refused else "")


CHECKS: tuple[Check, ...] = (
    block_layouts,
    block_layouts_at_random,
    state_layouts,
    same_again,
    base_alignment,
    one_run,
    formats,
    geometries,
)
