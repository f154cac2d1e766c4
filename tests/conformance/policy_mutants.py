"""Policies and announcements that are wrong."""

from __future__ import annotations

import time
from dataclasses import replace

from conformance.mutant import Mutant, byte_subject

from cachecore import CacheSlice, KvStorage, LayoutHints, PlanError, StandardLayoutPolicy
from cachecore.layout_kinds import packed_layout, row_layout


def _shifted(layout, spec, row, **fields):
    """The layout with one row elsewhere."""
    rows = list(layout.slices[spec])
    rows[row] = CacheSlice(**{**rows[row]._asdict(), **fields})
    slices = list(layout.slices)
    slices[spec] = tuple(rows)
    return replace(layout, slices=tuple(slices))


class OverlappingRows(StandardLayoutPolicy):
    """Two layers in one place."""

    def select_block_layout(self, specs, geometry, hints):
        layout = super().select_block_layout(specs, geometry, hints)
        first = layout.slices[0]
        return _shifted(layout, 0, 1, outer=first[0].outer, offset=first[0].offset) if len(first) > 1 else layout


class HostDropsARow(StandardLayoutPolicy):
    """The last layer has no host bytes."""

    def select_host_layout(self, specs, geometry, device_layout, hints):
        layout = super().select_host_layout(specs, geometry, device_layout, hints)
        return replace(layout, slices=(layout.slices[0][:-1], *layout.slices[1:]))


class HostRowsTooShort(StandardLayoutPolicy):
    """Host rows without their last bytes: quantisation scales dropped."""

    def select_host_layout(self, specs, geometry, device_layout, hints):
        layout = super().select_host_layout(specs, geometry, device_layout, hints)
        return _shifted(layout, 0, 0, nbytes=layout.slices[0][0].nbytes - specs[0].desc.itemsize)


class StatesOverlap(StandardLayoutPolicy):
    def select_state_layout(self, specs, hints):
        layout = super().select_state_layout(specs, hints)
        return _shifted(layout, 0, 1, offset=layout.slices[0][0].offset)


class IgnoresHints(StandardLayoutPolicy):
    def select_block_layout(self, specs, geometry, hints):
        return super().select_block_layout(specs, geometry, LayoutHints())


class PadsContiguousRows(StandardLayoutPolicy):
    """Rows that asked to be dense are padded."""

    def select_block_layout(self, specs, geometry, hints):
        if len({spec.num_rows for spec in specs}) == 1:
            return packed_layout(specs, base_alignment=hints.base_alignment)
        return row_layout(specs, base_alignment=hints.base_alignment)


class ChangesItsMind(StandardLayoutPolicy):
    """State kept between calls."""

    calls = 0

    def select_block_layout(self, specs, geometry, hints):
        ChangesItsMind.calls += 1
        if ChangesItsMind.calls % 2 and not any(spec.per_row_contiguous for spec in specs):
            return row_layout(specs, base_alignment=hints.base_alignment)
        return super().select_block_layout(specs, geometry, hints)


class NoLayout(StandardLayoutPolicy):
    def select_block_layout(self, specs, geometry, hints):
        return None


class OrderWithoutHeads(StandardLayoutPolicy):
    def kv_order(self, format):
        return ("token", "other")


class StoresAnything(StandardLayoutPolicy):
    def storage(self, format):
        found = super().storage(format)
        return KvStorage() if isinstance(found, str) else found


class TakesNoGeometry(StandardLayoutPolicy):
    def check_geometry(self, specs, geometry):
        raise PlanError("no geometry suits")


class StoresTwiceTheBytes(StandardLayoutPolicy):
    """Keeps bfloat16 models in float32."""

    def storage(self, format):
        return KvStorage("float32") if format == "plain" else super().storage(format)


class Nameless(StandardLayoutPolicy):
    version = ""


def _probe_hangs(device):
    time.sleep(5)


def _probe_raises(device):
    raise OSError("libdevice.so not found")


def _probe_says_true(device):
    return True


def _policy(policy, caught_by, says):
    return Mutant(policy.__name__, lambda: byte_subject(policy=policy), caught_by, says)


def _probe(name, probe, says):
    return Mutant(name, lambda: byte_subject(probe=probe, probe_limit_s=0.2), "discovery/probe-answers", says)


POLICY_MUTANTS = [
    _probe("ProbeHangs", _probe_hangs, "probe did not answer within 0.2 s"),
    _probe("ProbeRaises", _probe_raises, "probe raised OSError: libdevice.so not found"),
    _probe("ProbeSaysTrue", _probe_says_true, "probe returned True"),
    _policy(Nameless, "discovery/policy-says-who-it-is", "recorded in every plan"),
    _policy(OverlappingRows, "layout/block[kv]", "rows must not overlap"),
    _policy(HostDropsARow, "layout/block[kv]", "rows or scales forgotten on one tier"),
    _policy(HostRowsTooShort, "layout/block[kv]", "host layout is refused by the core"),
    _policy(StatesOverlap, "layout/states", "rows must not overlap"),
    _policy(IgnoresHints, "layout/base-alignment-hint", "hints not passed on"),
    _policy(PadsContiguousRows, "layout/block[kv-and-index]", "asked for a contiguous row"),
    _policy(ChangesItsMind, "layout/same-again[kv]", "state kept in the policy"),
    _policy(NoLayout, "layout/block[kv]", "expected a CacheLayout, found None"),
    _policy(OrderWithoutHeads, "layout/formats", "token, head and other, once each"),
    _policy(StoresAnything, "layout/formats", "unknown formats are stored as if plain"),
    _policy(TakesNoGeometry, "layout/geometries", "at least one of 15"),
    _policy(StoresTwiceTheBytes, "golden/block-bytes[llama-3.1-8b]", "another dtype's size"),
]
