"""The kit itself: selection, outcomes, reports, and the arithmetic that it compares with."""

from __future__ import annotations

import json
import threading
from functools import partial

import pytest
from samples import consumer_spec, layer_spec

from cachecore.device import DeviceSpec
from cachecore.errors import NoBackendError, PluginError
from cachecore.layout_kinds import block_major_layout, contiguous_layout, packed_layout, row_layout
from cachecore.ranking import BackendRecord, PluginRecord
from cachecore.reference import BYTE_BACKEND, BYTE_COPY
from cachecore.registry import PluginRegistry
from cachecore.testing import LEVELS, Check, Fault, Skipped, Subject, Trial, find_subject, report, run_checks, run_trial
from cachecore.testing import select_trials as select
from cachecore.testing.contents import after_copy, check_copy, first_difference
from cachecore.testing.places import Places, prove
from cachecore.testing.results import FAIL, PASS, SKIP, Outcome, level_status, text


@pytest.fixture
def subject() -> Subject:
    return Subject(BYTE_BACKEND, PluginRecord("core", "cachecore-kv", "1"), DeviceSpec("null"), (BYTE_COPY,))


def test_every_level_has_checks_with_titles_and_unique_ids():
    trials = select()

    assert {trial.check.level for trial in trials} == set(LEVELS)
    assert len({trial.id for trial in trials}) == len(trials)
    assert not [trial.id for trial in trials if trial.check.title.endswith(trial.check.name)]


def test_levels_come_in_their_order():
    found = list(dict.fromkeys(trial.check.level for trial in select()))

    assert found == list(LEVELS)


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="level 'speed' does not exist; the levels are discovery, layout"):
        select(("speed",))


def outcome_of(function, subject) -> Outcome:
    return run_trial(subject, Trial(Check("copy", "one", function)))


def test_a_check_that_returns_passes_with_what_it_tells(subject):
    outcome = outcome_of(lambda subject: "by memmove", subject)

    assert (outcome.status, outcome.told, outcome.id) == (PASS, "by memmove", "copy/one")


def test_a_fault_fails_with_every_part_of_its_message(subject):
    def wrong(subject):
        raise Fault("block 3", expected="0x01", found="0x02", at="byte 7", cause="ids off by one")

    assert outcome_of(wrong, subject).told == (
        "block 3: expected 0x01, found 0x02, at byte 7. Usual cause: ids off by one"
    )


def test_a_skipped_check_gives_its_reason(subject):
    def skipped(subject):
        raise Skipped("no streams")

    outcome = outcome_of(skipped, subject)

    assert (outcome.status, outcome.told) == (SKIP, "no streams")


@pytest.mark.parametrize("error", [RuntimeError("driver"), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_whatever_a_backend_raises_is_a_failure_that_says_where(subject, error):
    def broken(subject):
        raise error

    outcome = outcome_of(broken, subject)

    assert outcome.status == FAIL
    assert outcome.told.startswith(f"unexpected {type(error).__name__}: {error}, raised in broken() at ")


def test_what_a_plugin_raises_from_another_error_is_located_where_it_raises(subject):
    def looked_up():
        return {}["planted"]

    def broken(subject):
        try:
            looked_up()
        except KeyError as error:
            raise RuntimeError("no such kernel") from error

    told = outcome_of(broken, subject).told
    assert told.startswith("unexpected RuntimeError: no such kernel (from KeyError: 'planted'), raised in broken() at ")


def test_an_error_of_the_cores_own_is_located_there(subject):
    told = outcome_of(partial(Subject.geometry, case=None), subject).told

    assert "raised in geometry() at " in told
    assert "subject.py:" in told


def test_a_check_that_hangs_fails_and_ends_the_device_levels(subject, monkeypatch):
    held = threading.Event()
    trials = [
        Trial(Check("copy", "hangs", lambda subject: held.wait(10) and None)),
        Trial(Check("swap", "after", lambda subject: None)),
        Trial(Check("layout", "needs-no-device", lambda subject: None)),
    ]
    monkeypatch.setattr("cachecore.testing.running.select_trials", lambda levels: trials)

    outcomes = run_checks(subject, limit_s=0.05)
    held.set()

    assert [outcome.status for outcome in outcomes] == [FAIL, SKIP, PASS]
    assert outcomes[0].told.startswith("did not end within 0.05 s")
    assert outcomes[1].told == "copy/hangs did not end, so the device may hang"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [((PASS, SKIP), PASS), ((SKIP, SKIP), SKIP), ((PASS, FAIL, SKIP), FAIL), ((), SKIP)],
)
def test_level_status(statuses, expected):
    assert level_status([Outcome("copy", "copy/x", status) for status in statuses]) == expected


def test_find_subject_takes_the_first_device_that_the_backend_names():
    subject = find_subject(PluginRegistry(), "bytes")

    assert (subject.name, str(subject.device)) == ("bytes@cachecore-kv", "null")


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(NoBackendError, match="announces backend 'bites'; there are bytes@cachecore-kv"):
        find_subject(PluginRegistry(), "bites")


def test_a_name_of_two_distributions_is_refused_until_one_is_named():
    registry = PluginRegistry()
    registry.backends.append(BackendRecord(BYTE_BACKEND, PluginRecord("other", "other-dist", "1")))

    with pytest.raises(PluginError, match="announced twice; say which: bytes@cachecore-kv and bytes@other-dist"):
        find_subject(registry, "bytes")
    assert find_subject(registry, "bytes@other-dist").plugin.distribution == "other-dist"


def test_a_device_that_is_not_served_skips_the_device_levels_with_the_reason():
    subject = find_subject(PluginRegistry(), "bytes", "npu:0")

    outcomes = run_checks(subject, levels=("layout", "views"))

    assert {outcome.status for outcome in outcomes if outcome.level == "layout"} == {PASS}
    assert {outcome.told for outcome in outcomes if outcome.level == "views"} == {
        "backend 'bytes' does not serve npu:0 here: serves null, not npu"
    }


SPECS = (
    layer_spec("k_cache", (4, 2, 8)),
    layer_spec("v_cache", (4, 2, 4)),
    consumer_spec("index", (3, 11), alignment=1),
)
LAYOUTS = {
    "packed": packed_layout(SPECS),
    "row": row_layout(SPECS),
    "contiguous": contiguous_layout(SPECS),
    "block-major": block_major_layout(SPECS, 2),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_payloads_and_padding_cover_every_byte_once(kind):
    layout = LAYOUTS[kind]
    places = Places(layout, SPECS, 6 // layout.pages_per_entry, 2)

    seen = [bytearray(layout.pool_nbytes(pool, places.num_entries)) for pool in range(len(layout.pools))]
    for block in range(3):
        pieces = [places.payload(spec, row, block, page) for spec, row, page in places.parts] + places.padding(block)
        for pool, start, nbytes in pieces:
            for byte in range(start, start + nbytes):
                seen[pool][byte] += 1

    assert all(set(pool) == {1} for pool in seen)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_owner_and_description_agree_with_the_payload(kind):
    layout = LAYOUTS[kind]
    places = Places(layout, SPECS, 6 // layout.pages_per_entry, 2)

    at = places.payload(1, 1, 2, 1)

    assert places.owner(at.pool, at.start + 5) == (1, 1, 2, 1)
    # v_cache: 4 * 2 * 4 * 2 bytes = 64 bytes a page and row
    assert "cache 'v_cache', row 1, block 2, page 1, byte 5 of 64" in places.describe(at.pool, at.start + 5)


def test_payload_of_a_packed_row_worked_by_hand():
    places = Places(LAYOUTS["packed"], SPECS, 6, 2)

    # k 128 bytes, padded to 256; v at 256; index at 512, 33 bytes: 545, padded to 768 an entry.
    # Row 1 starts after 6 * 768 bytes; block 2, page 1 is entry 5: 4608 + 3840 + 256.
    assert places.payload(1, 1, 2, 1) == (0, 8704, 64)


def test_prove_refuses_overlapping_rows():
    layout = LAYOUTS["row"]
    rows = layout.slices[0]
    broken = type(layout)("row", layout.pools, ((rows[0], rows[0]), *layout.slices[1:]))

    with pytest.raises(Fault, match="belongs to cache 'k_cache' row 0 and to cache 'k_cache' row 1"):
        prove(broken, SPECS, 1, "device layout")


def test_after_copy_moves_payloads_between_layouts():
    src, dst = Places(LAYOUTS["packed"], SPECS, 4, 2), Places(LAYOUTS["block-major"], SPECS, 2, 2)
    source = [bytes(range(256)) * (src.layout.nbytes(4) // 256)]
    target = [bytes(dst.layout.nbytes(2))]

    moved = after_copy(src, dst, source, target, [(1, 0)])

    at, to = src.payload(2, 1, 1, 0), dst.payload(2, 1, 0, 0)
    assert moved[0][to.start : to.start + 33] == source[0][at.start : at.start + 33]
    assert not any(moved[0][dst.layout.nbytes(1) :])


def test_check_copy_lets_padding_of_destinations_be_anything():
    places = Places(LAYOUTS["row"], SPECS, 4, 1)
    before = [bytes([pool + 1]) * places.layout.pool_nbytes(pool, 4) for pool in range(3)]
    found = [bytearray(pool) for pool in before]
    pool, start, nbytes = places.padding(2)[0]
    found[pool][start : start + nbytes] = bytes(nbytes)

    check_copy("copy", places, places, before, before, found, [(0, 2)])
    with pytest.raises(Fault, match="padding of a block that is no destination"):
        check_copy("copy", places, places, before, before, found, [(0, 1)])


@pytest.mark.parametrize("byte", [0, 65_535, 65_536, 99_999])
def test_first_difference(byte):
    one = bytearray(100_000)
    two = bytearray(one)
    two[byte] = 1

    assert first_difference(one, two) == byte
    assert first_difference(one, one) is None


def test_report_is_json_and_says_where_it_comes_from(subject):
    data = report(subject, run_checks(subject, levels=("golden", "order")), 1.5)

    assert json.loads(json.dumps(data)) == data
    assert (data["format"], data["status"], data["backend"], data["device"]) == (
        "cachecore-conformance", "pass", "bytes", "null",
    )  # fmt: skip
    assert [(level["level"], level["status"]) for level in data["levels"]] == [("golden", "pass"), ("order", "skipped")]
    assert data["environment"]["capabilities"]["byte_addressable"] is None


def test_text_gathers_what_was_skipped_for_one_reason(subject):
    lines = text(report(subject, run_checks(subject, levels=("order",)), 0.1))

    assert "skipped 10 checks of order: byte tensors have no streams" in lines
    assert lines[-1] == "0 passed, 0 failed, 10 skipped in 0.1 s"


def test_text_gathers_failures_that_differ_in_numbers_only(subject):
    outcomes = [
        Outcome("copy", f"copy/one[{name}]", FAIL, f"cache {name!r}: expected 0x{byte:02x}, found 0xff, at byte {byte}")
        for byte, name in enumerate(("k", "v", "index"), 10)
    ]
    outcomes.append(Outcome("swap", "swap/one", FAIL, "another"))

    lines = text(report(subject, outcomes, 0.1))

    assert "FAIL copy/one[k] and 2 more alike, such as copy/one[v]" in lines
    assert "  cache 'k': expected 0x0a, found 0xff, at byte 10" in lines
    assert "FAIL swap/one" in lines
