from __future__ import annotations

import pytest

from cachecore import DeviceSpec, PlanError


class TorchLike:
    """What ``str(torch.device("cuda", 1))`` looks like, without torch."""

    def __str__(self):
        return "cuda:1"


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cpu", DeviceSpec("cpu")),
        ("cuda:1", DeviceSpec("cuda", 1)),
        ("npu:0", DeviceSpec("npu", 0)),
        (TorchLike(), DeviceSpec("cuda", 1)),
        (DeviceSpec("mlu", 3), DeviceSpec("mlu", 3)),
    ],
)
def test_parse_reads_names_and_objects(device, expected):
    assert DeviceSpec.parse(device) == expected


@pytest.mark.parametrize("text", ["cpu", "cuda:0", "privateuse1:12"])
def test_device_prints_as_it_is_written(text):
    assert str(DeviceSpec.parse(text)) == text


@pytest.mark.parametrize("text", ["", "cuda:", "cuda:-1", "cuda:one", ":0", "cuda:0:1", "cuda 0", "CUDA", "cuda:12345"])
def test_parse_refuses_other_text(text):
    with pytest.raises(PlanError, match=r"is not understood; expected a type and an optional index") as caught:
        DeviceSpec.parse(text)

    assert caught.value.device == text


@pytest.mark.parametrize("wrong", [None, 0, 1.5, True, b"cuda", bytearray(b"cpu")])
def test_parse_refuses_other_types(wrong):
    with pytest.raises(TypeError, match="a device is a name such as 'cpu' or 'cuda:0'"):
        DeviceSpec.parse(wrong)
