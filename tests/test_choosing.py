from __future__ import annotations

from itertools import permutations

import pytest
from announcing import backend

from cachecore import DeviceSpec, NoBackendError, PluginError, StandardLayoutPolicy
from cachecore.choosing import Choice
from cachecore.ranking import BackendRecord, PluginRecord

CUDA = DeviceSpec("cuda")


class Heads(StandardLayoutPolicy):
    """Another vendor's layout."""

    name = "heads-first"


def absent(what):
    return lambda device: f"finds no {what}"


def choice(*infos, forced=None, device=CUDA):
    records = tuple(BackendRecord(info, PluginRecord("p", f"cachecore-{info.name}", "1")) for info in infos)
    return Choice(device, forced, records, (), 0.2)


def no_opinion(device, candidates):
    return None


NVIDIA = backend("cuda-triton", ("cuda",), 100, probe=absent("NVIDIA driver"))
METAX = backend("dlinfer-maca", ("cuda",), 100, probe=absent("MetaX driver"), load_policy=Heads)
GENERIC = backend("torch-default", ("*",), 10, probe=absent("cuda device"))


@pytest.mark.parametrize("order", list(permutations([NVIDIA, METAX, GENERIC])))
def test_a_laptop_is_told_how_to_say_which_vendor_it_plans_for(order):
    with pytest.raises(PluginError) as caught:
        choice(*order).plan(no_opinion)

    assert str(caught.value) == (
        "backends cuda-triton (cachecore-cuda-triton) and dlinfer-maca (cachecore-dlinfer-maca) all plan for cuda, "
        "each with a layout of its own, and no such device is here to tell which is meant; say which with "
        "backend='cuda-triton' or CACHECORE_BACKEND=cuda-triton. What they say: cuda-triton (cachecore-cuda-triton): "
        "finds no NVIDIA driver; dlinfer-maca (cachecore-dlinfer-maca): finds no MetaX driver"
    )
    assert isinstance(caught.value.__cause__, NoBackendError)
    assert len(caught.value.reasons) == 2


@pytest.mark.parametrize("name", ["cuda-triton", "dlinfer-maca"])
def test_what_the_error_says_helps(name):
    assert choice(NVIDIA, METAX, GENERIC, forced=name).plan(no_opinion).info.name == name


def test_the_vendor_that_finds_its_device_plans():
    here = backend("dlinfer-maca", ("cuda",), 100, load_policy=Heads)

    assert choice(NVIDIA, here, GENERIC).plan(no_opinion).info.name == "dlinfer-maca"


def test_one_layout_of_all_claimants_needs_nobodys_word():
    alike = backend("other", ("cuda",), 100, probe=absent("driver"))

    assert choice(NVIDIA, alike, GENERIC).plan(no_opinion).info.name == "cuda-triton"


def test_a_better_priority_plans_without_a_device():
    better = backend("dlinfer-maca", ("cuda",), 110, probe=absent("MetaX driver"), load_policy=Heads)

    assert choice(NVIDIA, better).plan(no_opinion).info.name == "dlinfer-maca"


def test_the_word_of_the_application_is_asked_of_the_candidates():
    asked = []
    one, two = backend("a", ("cuda",)), backend("b", ("cuda",))

    def overrule(device, candidates):
        asked.append((device, [info.name for info in candidates]))
        return "b"

    assert choice(two, one).select(overrule).chosen.info.name == "b"
    assert asked == [(CUDA, ["a", "b"])]


class Mute:
    """Equal to everything, and cannot be shown."""

    def __eq__(self, other):
        return True

    __hash__ = None

    def __repr__(self):
        raise SystemExit("no words")


def test_a_word_that_is_no_name_is_refused():
    with pytest.raises(PluginError, match=r"returned <Mute, whose repr\(\) raised SystemExit> for cuda; expected None"):
        choice(backend("a", ("cuda",))).select(lambda device, candidates: Mute())
