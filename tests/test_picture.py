from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from samples import POLICY, consumer_spec, kv_plan, layer_spec, plan_set
from strategies import plans

from cachecore import (
    BlockCacheGeometry,
    CachePlanSet,
    KvCacheConfig,
    LayoutHints,
    StateCacheRequest,
    kv_specs,
    plan_from_specs,
    plan_from_states,
)
from cachecore.picture import layout_svg, layout_text
from cachecore.picture.strips import cut_pools, line_nbytes

SVG = "{http://www.w3.org/2000/svg}"
WHERE = re.compile(r"(.+), bytes ([\d,]+) to ([\d,]+) at outer (\d+) of pool (\d+)")


def planned(*specs, page=4, pages=1, **more):
    return plan_from_specs(specs, BlockCacheGeometry(page * pages, page), POLICY, **more)


def kv(layers, *, pages=1, **more):
    geometry = BlockCacheGeometry(16 * pages, 16)
    config = KvCacheConfig(layers=layers, **{"num_kv_heads": 2, "head_dim": 64, "dtype": "bfloat16", **more})
    return plan_from_specs(kv_specs(config, geometry, POLICY), geometry, POLICY)


def sparse(layers):
    """A latent of 656 bytes a token, no V, and a dense index: a composite layout."""
    geometry = BlockCacheGeometry(64)
    config = KvCacheConfig(
        layers=layers, latent_dim=512, rope_dim=64, dtype="bfloat16", quant_policy="fp8", sparse_mla=True
    )
    index = consumer_spec("dsa_indexer_k", (64, 1, 132), rows=layers, per_row_contiguous=True)
    return plan_from_specs([*kv_specs(config, geometry, POLICY), index], geometry, POLICY)


def states():
    requests = [
        StateCacheRequest(name="conv", shape=(192, 3), dtype="float16", layers=(0, 1, 2, 4)),
        StateCacheRequest(name="recurrent", shape=(4, 16, 17), dtype="float32", layers=(0, 1, 2, 4)),
    ]
    return plan_from_states(requests, POLICY)


PLANS = {
    "one-row": lambda: plan_set(kv(1, num_kv_heads=1)),
    "thirty-layers": lambda: plan_set(kv(30)),
    "four-pages": lambda: plan_set(kv(12, pages=4)),
    "int8-pages": lambda: plan_set(kv(32, pages=2, quant_policy="int8")),
    "122-rows": lambda: plan_set(kv(122)),
    "more-rows-than-shown": lambda: plan_set(kv(300)),
    "many-pages": lambda: plan_set(kv(2, pages=64)),
    "a-thousand-pages": lambda: plan_set(kv(2, pages=1024)),
    "one-byte": lambda: plan_set(planned(layer_spec("k", (1, 1, 1), dtype="uint8"), page=1)),
    "composite": lambda: plan_set(sparse(61)),
    "padding": lambda: plan_set(planned(layer_spec("k", (4, 3, 24), rows=5), layer_spec("v", (4, 3, 10), rows=5))),
    "unlike-pools": lambda: plan_set(
        planned(
            consumer_spec("wide", (4, 9000), rows=3), consumer_spec("narrow", (4, 1), rows=2, per_row_contiguous=True)
        )
    ),
    "page-major": lambda: plan_set(
        planned(*(layer_spec(name, rows=20) for name in "kv"), pages=2, hints=LayoutHints(one_run_per_block=True))
    ),
    "groups": lambda: plan_set(kv_plan(rows=3), kv_plan(rows=9, group="sliding", window=512, tag="_sliding")),
    "states": lambda: plan_set(kv(2), *states()),
    "no-bytes": lambda: plan_set(planned(layer_spec("latent_v", (4, 1, 0)))),
    "twenty-names": lambda: plan_set(planned(*(layer_spec(f"cache_number_{n}", rows=1) for n in range(20)))),
    "awkward-names": lambda: plan_set(planned(layer_spec('<k> & "v"'), consumer_spec("a_name_" * 12))),
}


@pytest.fixture(params=list(PLANS))
def plan_set_of_many(request) -> CachePlanSet:
    return PLANS[request.param]()


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float
    what: str


def elements(svg: str, tag: str):
    return ElementTree.fromstring(svg).iter(SVG + tag)


def texts(svg: str) -> list[Box]:
    """Where every text stands; DejaVu Sans Mono is 0.602 em wide, its proportional bold at most 0.75."""
    boxes = []
    for text in elements(svg, "text"):
        size, said = float(text.get("font-size")), text.text or ""
        wide = len(said) * size * (0.602 if text.get("class") == "m" else 0.75)
        x, y = float(text.get("x")), float(text.get("y"))
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[text.get("text-anchor", "start")]
        boxes.append(Box(left, y - 0.72 * size, left + wide, y + 0.2 * size, said))
    return boxes


def strips(svg: str) -> list[tuple[Box, str, int, int]]:
    """Every rectangle that says which bytes it is: its box, what, first byte and number of bytes."""
    found = []
    for rect in elements(svg, "rect"):
        title = rect.find(SVG + "title")
        match = WHERE.fullmatch(title.text) if title is not None else None
        if match:
            x, y, wide, high = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
            start, stop = (int(match.group(number).replace(",", "")) for number in (2, 3))
            found.append((Box(x, y, x + wide, y + high, title.text), match.group(1), start, stop - start))
    return found


def overlapping(boxes: list[Box]) -> list[tuple[str, str]]:
    ordered = sorted(boxes, key=lambda box: box.top)
    found = []
    for at, one in enumerate(ordered):
        for other in ordered[at + 1 :]:
            if other.top >= one.bottom - 0.02:
                break
            if one.left < other.right - 0.02 and other.left < one.right - 0.02:
                found.append((one.what, other.what))
    return found


def test_texts_overlap_nowhere_and_stay_on_the_page(plan_set_of_many):
    svg = layout_svg(plan_set_of_many, dict.fromkeys(plan_set_of_many.names, 1000))
    page = next(elements(svg, "svg"))
    boxes = texts(svg)

    assert not overlapping(boxes)
    assert min(box.left for box in boxes) >= 0
    assert max(box.right for box in boxes) <= float(page.get("width"))
    assert max(box.bottom for box in boxes) <= float(page.get("height"))


def test_rows_overlap_nowhere(plan_set_of_many):
    assert not overlapping([box for box, *_ in strips(layout_svg(plan_set_of_many))])


@pytest.mark.parametrize("name", ["one-row", "four-pages", "122-rows", "padding", "page-major", "states"])
def test_one_scale_serves_both_tiers_and_every_row(name):
    plans = PLANS[name]()
    for plan in plans:
        found = strips(layout_svg(plan_set(plan)))

        # A column is 584 pixels, 84 of them for labels: a full line is 500.
        scale = 500 / line_nbytes(plan)
        assert found
        for box, what, _, nbytes in found:
            assert box.right - box.left == pytest.approx(nbytes * scale, abs=0.011), what


def test_a_narrow_pool_is_drawn_wider_by_a_power_of_two_and_says_so():
    svg = layout_svg(PLANS["unlike-pools"]())
    widths = {what: box.right - box.left for box, what, _, _ in strips(svg) if box.left < 640}

    # 36,000 bytes in entries of 36,096 fill the 500 pixels; 4 bytes are drawn 2**13 times wider: 2**14 would need 907
    assert widths["wide consumer row 0"] == pytest.approx(500 * 36000 / 36096, abs=0.01)
    assert widths["narrow consumer row 1"] == pytest.approx(500 * 4 / 36096 * 2**13, abs=0.01)
    assert any("drawn 8192 x wider" in box.what for box in texts(svg))


def test_every_byte_of_a_block_is_drawn_on_both_tiers():
    found = strips(layout_svg(PLANS["four-pages"]()))
    left, right = (sum(nbytes for box, _, _, nbytes in found if (box.left < 640) == side) for side in (True, False))

    # 12 layers * 4 pages * (K and V) * 16 tokens * 2 heads * 64 * 2 bytes
    assert left == right == 12 * 4 * 2 * 4096


def test_padding_is_hatched_where_it_lies():
    svg = layout_svg(PLANS["padding"]())
    hatched = [(start, nbytes) for _, what, start, nbytes in strips(svg) if what == "padding"]

    # K 576 bytes, V from 768 to 1,008, entries of 1,024; none on the host
    assert hatched == [(576, 192), (1008, 16)] * 5
    fills = [
        rect.get("fill") for rect in elements(svg, "rect") if (rect.findtext(SVG + "title") or "").startswith("pad")
    ]
    assert set(fills) == {"url(#padding)"}


def test_neighbouring_rows_of_a_cache_differ_in_shade():
    svg = layout_svg(plan_set(kv_plan(rows=3)))
    fills = {}
    for rect in elements(svg, "rect"):
        match = WHERE.fullmatch(rect.findtext(SVG + "title") or "")
        if match:
            fills[match.group(1)] = rect.get("fill")

    assert fills["k_cache layer 0"] == fills["k_cache layer 2"] != fills["k_cache layer 1"]
    assert fills["k_cache layer 0"] != fills["v_cache layer 0"]


def test_counts_add_the_whole_memory():
    plans = PLANS["groups"]()

    assert "All device memory" not in layout_svg(plans)
    said = [box.what for box in texts(layout_svg(plans, {"full": 1000, "sliding": 1}))]
    # 3 and 9 layers of 512 bytes a block
    assert "1.46 MiB, 1,000 blocks" in said  # 1,536,000 / 2**20 is 1.4648
    assert "4.5 KiB, 1 block" in said


def test_bars_say_that_they_are_sums():
    plans = PLANS["thirty-layers"]()

    said = [box.what for box in texts(layout_svg(plans, {"full": 2}))]

    assert "sums over all blocks and slots; positions are in the strips below" in said
    assert "sums over one block; positions are in the strips below" in said


def test_one_number_is_written_in_one_way():
    # 33 layers * 2 * 16 tokens * 2 heads * 64 * 2 bytes = 270,336 bytes of a block = 264 KiB; 16 of them are 4.125 MiB
    said = " ".join(box.what for box in texts(layout_svg(plan_set(kv(33)), {"full": 16})))

    assert "4.12 MiB, 16 blocks" in said
    assert "4.125" not in said


def test_the_same_plan_gives_the_same_picture():
    assert layout_svg(PLANS["states"]()) == layout_svg(PLANS["states"]())


@given(plans())
@settings(max_examples=15)
def test_lines_hold_every_byte_in_order(plan):
    limit = line_nbytes(plan)
    for host in (False, True):
        total = 0
        for pool in cut_pools(plan, host=host):
            for line in pool.lines:
                ends = [(segment.start, segment.start + segment.nbytes) for segment in line.segments]
                assert all(stop == start for (_, stop), (start, _) in pairwise(ends))
                assert (ends[0][0], ends[-1][1]) == (0, line.nbytes)
                assert line.nbytes <= limit
                for segment, (start, stop) in zip(line.segments, ends, strict=True):
                    assert all(start < page < stop for page in segment.page_starts)
                total += line.nbytes
        assert total == plan.unit_nbytes(host=host)
    assert not overlapping(texts(layout_svg(plan_set(plan))))


def test_letters_show_one_column_for_equally_many_bytes():
    plans = plan_set(planned(layer_spec("k_cache", (4, 3, 24), rows=2), layer_spec("v_cache", (4, 3, 10), rows=2)))

    # 32 columns after the 14 of the label: 1,024 bytes are 32 a column, so K has 18, padding 6, V 7.5 of 8
    text = layout_text(plans, width=46)
    assert "      layer 0 KKKKKKKKKKKKKKKKKK······VVVVVVVV\n" in text
    assert "      layer 1 kkkkkkkkkkkkkkkkkk······vvvvvvvv\n" in text
    # The host's 1,632 bytes have no padding: 576 + 240 + 208 of the next 576 on the first line. Columns that two rows
    # share equally show the first of them.
    assert "         at 0 KKKKKKKKKKKKKKKKKKVVVVVVVVkkkkkk\n" in text
    assert "     at 1,024 kkkkkkkkkkkkvvvvvvv\n" in text


def test_letters_keep_to_the_width(plan_set_of_many):
    text = layout_text(plan_set_of_many, dict.fromkeys(plan_set_of_many.names, 3), width=72)

    assert max(map(len, text.splitlines())) <= 72


def test_letters_of_names_are_distinct():
    names = layout_text(plan_set(planned(layer_spec("kv"), layer_spec("key"), layer_spec("k")))).splitlines()[0]

    assert names == "Kk kv  Ee key  Aa k  · padding"


def test_long_pools_are_shown_in_part():
    assert "… 24 more lines …" in layout_text(PLANS["thirty-layers"]())
    # 300 lines: the first 96 and the last 16 are shown
    assert "… 188 more lines like these …" in layout_svg(PLANS["more-rows-than-shown"]())


@pytest.mark.parametrize(("pages", "layers"), [(1024, 32), (65536, 2)])
def test_a_block_of_many_pages_is_drawn_as_its_first_ones(pages, layers):
    plans = plan_set(kv(layers, pages=pages))
    svg, text = layout_svg(plans), layout_text(plans)

    assert f"the first 64 of {pages:,} entries" in svg
    assert f"the first 64 of {pages:,} entries" in text
    # 64 pages of K and V a layer on the device: not a rectangle for each of 1,024 pages
    assert sum(1 for _ in elements(svg, "rect")) < 2 * 64 * layers + 2500


def test_the_pages_of_a_row_are_notched_where_they_begin():
    plan = kv(2, pages=4)

    (pool,) = cut_pools(plan, host=True)

    # a page: 16 tokens * 2 heads * 64 * 2 bytes = 4,096; a row of the host holds four of them
    notches = [segment.page_starts for line in pool.lines for segment in line.segments]
    assert [page % 4096 for starts in notches for page in starts] == [0] * 12
    assert len(notches) == 4


def test_a_row_that_goes_on_at_a_page_has_no_notch_there():
    plan = planned(consumer_spec("small", (4, 32)), consumer_spec("large", (4, 96)), pages=3)

    (pool,) = cut_pools(plan, host=True)

    # a line is 512 * 3 = 1,536 bytes; on the host two rows of 384 bytes come first, so that the next one, three pages
    # of 384, is cut after 768: its last page begins with the next line
    assert [one.page_starts for line in pool.lines for one in line.segments if not one.first] == [()]


def test_letters_keep_their_columns_where_a_label_is_long():
    plans = plan_set(planned(layer_spec("k", row_ids=(0, 1 << 40))))

    lines = [line for line in layout_text(plans).splitlines() if line.endswith("k" * 20)]

    assert lines
    assert {len(line) for line in lines} == {88}


@pytest.mark.parametrize("wrong", [None, 3, kv(1)])
@pytest.mark.parametrize("draw", [layout_svg, layout_text])
def test_what_is_no_plan_set_is_refused(draw, wrong):
    with pytest.raises(TypeError, match="plans must be a CachePlanSet, not "):
        draw(wrong)


def test_colours_are_asked_for():
    plans = plan_set(kv_plan())

    assert "\x1b[" not in layout_text(plans)
    coloured = layout_text(plans, colour=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == layout_text(plans)


def test_names_of_control_characters_are_well_formed():
    specs = [layer_spec("\x00\ud800<k>")]
    plan = plan_from_specs(specs, BlockCacheGeometry(4), POLICY)

    told = layout_svg(plan_set(plan))

    assert "\\x00\\ud800&lt;k&gt;" in told
    ElementTree.fromstring(told)


def test_padding_of_any_length_is_drawn():
    plan = kv_plan()
    (pool,) = plan.host_layout.pools
    host = replace(plan.host_layout, pools=(replace(pool, inner=pool.inner << 40),))

    assert "</svg>" in layout_svg(plan_set(replace(plan, host_layout=host)))
