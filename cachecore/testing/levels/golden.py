"""Golden byte plans: published models take the bytes that were worked out by hand, whatever the layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from cachecore.errors import PlanError
from cachecore.kv import KvCacheConfig, kv_specs
from cachecore.meaning import Plane
from cachecore.plan import plan_from_specs
from cachecore.plan_set import CachePlanSet
from cachecore.schema import BlockCacheGeometry, CacheTensorSpec, StateCacheRequest
from cachecore.sizing import fit
from cachecore.state_plan import plan_from_states
from cachecore.testing.checks import Check, check
from cachecore.testing.faults import Fault, Skipped
from cachecore.testing.subject import Subject

__all__ = ["CHECKS"]

_FACTS = json.loads((files("cachecore.testing") / "golden.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, eq=False)
class Golden:
    """One published shape and its bytes."""

    name: str
    facts: MappingProxyType[str, Any]


BLOCKS = tuple(Golden(facts["name"], MappingProxyType(facts)) for facts in _FACTS["blocks"])
STATES = tuple(Golden(facts["name"], MappingProxyType(facts)) for facts in _FACTS["states"])


def _index(config: KvCacheConfig, block_size: int, token_nbytes: int) -> CacheTensorSpec:
    rows = tuple(range(len(config.layers))) if not isinstance(config.layers, int) else ()
    return CacheTensorSpec(
        name="index",
        shape=(block_size, token_nbytes),
        dtype="uint8",
        per_row_contiguous=True,
        axes=("token", "other"),
        format="dsa_index",
        planes=(Plane("keys", token_nbytes - 4), Plane("scales", 4)),
        row_ids=rows,
        consumer_rows=rows,
    )


@check("golden", "block-bytes", BLOCKS)
def block_bytes(subject: Subject, case: Golden) -> str | None:
    """A page and a block take exactly the bytes of the model's shape; padding is counted apart."""
    facts = case.facts
    config = KvCacheConfig(**facts["kv"])
    geometry = BlockCacheGeometry(facts["block_size"])
    try:
        specs = list(kv_specs(config, geometry, subject.policy))
        if "index_token_nbytes" in facts:
            specs.append(_index(config, facts["block_size"], facts["index_token_nbytes"]))
        plan = plan_from_specs(specs, geometry, subject.policy)
    except PlanError as error:
        raise Skipped(f"the policy refuses this model: {error}") from error
    page = sum(spec.page_nbytes for spec in specs if spec.name in ("k_cache", "v_cache"))
    _same("bytes of K and V a page and layer", facts["page_nbytes"], page)
    index = sum(spec.page_nbytes for spec in specs if spec.name == "index")
    _same("bytes of an index page", facts.get("index_page_nbytes", 0), index)
    for tier, layout in (("device", plan.layout), ("host", plan.host_layout)):
        _same(f"payload bytes of a block on the {tier}", facts["block_nbytes"], layout.payload_nbytes)
    padding = plan.layout.padding_nbytes
    _same("bytes of a block on the device, padding included", facts["block_nbytes"] + padding, plan.block_nbytes())
    if padding:
        return f"{padding} bytes of padding a block"
    if "fits_20_gib" in facts:
        plans = CachePlanSet((plan,), str(subject.device), subject.info.name)
        reserve = plan.reserved_nbytes(1) - plan.nbytes(1)
        _same("blocks that fit 20 GiB", facts["fits_20_gib"], fit(plans, memory_nbytes=(20 << 30) + reserve)["full"])
    return None


@check("golden", "slot-bytes", STATES)
def slot_bytes(subject: Subject, case: Golden) -> str | None:
    """A slot takes exactly the bytes of the model's states."""
    facts = case.facts
    layers = tuple(range(facts["layers"]))
    requests = tuple(
        StateCacheRequest(name=name, shape=tuple(facts[f"{name}_shape"]), dtype=facts["dtype"], layers=layers)
        for name in ("conv", "ssm")
    )
    plan = plan_from_states(requests, subject.policy)[0]
    for spec in plan.specs:
        _same(f"bytes of state {spec.name!r} a layer", facts[f"{spec.name}_nbytes"], spec.page_nbytes)
    _same("payload bytes of a slot", facts["slot_nbytes"], plan.layout.payload_nbytes)
    return f"{plan.layout.padding_nbytes} bytes of padding a slot" if plan.layout.padding_nbytes else None


def _same(what: str, expected: int, found: int) -> None:
    if expected != found:
        raise Fault(
            what,
            expected=expected,
            found=found,
            cause="heads of another rank counted, scales or index rows forgotten, or another dtype's size",
        )


CHECKS: tuple[Check, ...] = (block_bytes, slot_bytes)
