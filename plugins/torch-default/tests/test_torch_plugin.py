"""What the plugin announces, without torch where it must; and its types."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cachecore_torch_default
import pytest
import torch
from cachecore_torch_default import announcing, plugin

from cachecore import CopySide, DeviceSpec, PluginRegistry
from cachecore.layout_kinds import packed_layout
from cachecore.registry import PluginRecord
from cachecore.schema import CacheTensorSpec

LAYOUT = packed_layout([CacheTensorSpec(name="k", shape=(4,), dtype="uint8", row_ids=(0,))])


def registry() -> PluginRegistry:
    found = PluginRegistry(environ={})
    found.register(plugin, PluginRecord("torch-default", "cachecore-torch-default", "0.1.0"))
    return found


def side(device: str, backend: str = "torch-default") -> CopySide:
    spec = DeviceSpec.parse(device)
    return CopySide(backend, "host" if spec.type == "cpu" else spec.type, spec, LAYOUT)


def test_the_plugin_and_its_policy_load_where_torch_cannot_be_imported() -> None:
    script = textwrap.dedent(
        """
        import sys
        sys.modules["torch"] = None  # any import of torch raises
        import cachecore_torch_default
        from cachecore_torch_default import announcing, plugin
        (info,) = plugin.cachecore_register_backends()
        assert info.load_policy().name == "standard"
        assert len(plugin.cachecore_register_block_copies()) == 2
        assert "TorchBackend" in dir(cachecore_torch_default)
        """
    )

    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_registry_chooses_it_for_the_cpu_and_builds_tensors() -> None:
    chosen = registry().select("cpu").chosen

    assert (chosen.info.name, chosen.info.priority, chosen.info.device_types) == ("torch-default", 10, ("*",))
    assert isinstance(chosen.info.load(), cachecore_torch_default.TorchBackend)


def test_probe_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = SimpleNamespace(is_available=lambda: False)
    two = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    monkeypatch.setattr(torch, "get_device_module", {"xpu": absent, "npu": two}.__getitem__)

    assert plugin.probe(DeviceSpec("npu")) is None
    assert plugin.probe(DeviceSpec("npu", 1)) is None
    assert plugin.probe(DeviceSpec("npu", 2)) == "torch finds 2 npu devices, so there is no npu:2"
    assert "torch.xpu.is_available() is False" in str(plugin.probe(DeviceSpec("xpu")))


def test_probe_names_an_unknown_device_type_and_a_missing_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(plugin.probe(DeviceSpec("warp"))).endswith(" has no device type 'warp'")

    monkeypatch.setattr(announcing, "find_spec", lambda name: None)
    assert "torch is not installed" in str(plugin.probe(DeviceSpec("cpu")))
    assert "torch is not installed" in str(plugin.probe(DeviceSpec("npu")))


def test_probe_tells_the_first_cause_where_torch_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> ModuleType:
        try:
            raise OSError("libhccl.so: cannot open shared object file")
        except OSError as error:
            raise RuntimeError("failed to load the backend extension torch_npu") from error

    monkeypatch.setattr(announcing, "import_module", broken)
    announcing._torch_or_reason.cache_clear()

    reason = str(plugin.probe(DeviceSpec("npu")))
    monkeypatch.undo()
    again = str(plugin.probe(DeviceSpec("npu")))
    announcing._torch_or_reason.cache_clear()

    assert again == reason  # what a second import in the process would say is not the reason
    assert reason.startswith("unavailable: libhccl.so: cannot open shared object file; torch itself cannot be imported")
    assert plugin.probe(DeviceSpec("cpu")) is None  # not imported, so not known; loading the backend will say it


def test_cpu_has_no_second_device() -> None:
    assert plugin.probe(DeviceSpec("cpu", 0)) is None
    assert plugin.probe(DeviceSpec("cpu", 1)) == "there is one CPU device, so there is no cpu:1"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (announcing.not_of_backends(("a", "b"), side("npu", "a"), side("npu", "b")), None),
        (
            announcing.not_of_backends(("a",), side("npu", "a"), side("cpu", "c")),
            "works on memory of 'a', not of backend 'c'",
        ),
        (announcing.not_on_one_device(side("npu:0"), side("npu:0")), None),
        (announcing.not_on_one_device(side("npu:0"), side("npu:1")), "works on one device, not from npu:0 to npu:1"),
        (announcing.not_with_host(side("npu"), side("cpu")), None),
        (
            announcing.not_with_host(side("npu"), side("npu")),
            "moves between the host and a device, not from npu to npu",
        ),
    ],
)
def test_reasons_of_copies(reason: str | None, told: str | None) -> None:
    assert reason == told


@pytest.mark.parametrize(
    ("src", "dst", "serves"),
    [
        (side("cuda:0"), side("cuda:0"), "torch-gather-scatter"),
        (side("cpu"), side("cpu"), "torch-gather-scatter"),
        (side("npu"), side("cpu"), "torch-staged-swap"),
        (side("cpu"), side("npu"), "torch-staged-swap"),
        (side("cuda:0"), side("cuda:1"), None),
        (side("null", "bytes"), side("null", "bytes"), None),
    ],
)
def test_at_most_one_generic_copy_serves_a_pair(src: CopySide, dst: CopySide, serves: str | None) -> None:
    copies = plugin.cachecore_register_block_copies()

    serving = [copy.name for copy in copies if copy.probe(src, dst) is None]

    assert serving == ([] if serves is None else [serves])


def test_public_names_are_all_there() -> None:
    for name in cachecore_torch_default.__all__:
        assert getattr(cachecore_torch_default, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'TorchBackends'"):
        cachecore_torch_default.TorchBackends  # type: ignore[attr-defined]  # noqa: B018  # what is tested


def test_no_generic_path_names_a_vendor_or_accelerator_memory() -> None:
    folder = Path(str(cachecore_torch_default.__file__)).parent

    for source in folder.glob("*.py"):
        text = source.read_text()
        assert "torch.cuda" not in text, source
        assert "accelerator.memory" not in text, source
        assert "accelerator.get_memory_info" not in text, source


def test_the_library_that_is_missing_is_told_wherever_it_stands_in_the_chain() -> None:
    loader = OSError("libhccl.so: cannot open shared object file\nand more")
    loader.__context__ = KeyError("cache")  # what was being handled when the loader failed
    wrapped = RuntimeError("Failed to load the backend extension")
    wrapped.__cause__ = loader

    assert announcing.missing_part(wrapped) == "libhccl.so: cannot open shared object file"


def test_an_engine_on_torch_is_typed_with_tensors(tmp_path: Path) -> None:
    api: ModuleType = pytest.importorskip("mypy.api")
    source = tmp_path / "typed.py"
    source.write_text(
        textwrap.dedent(
            """
            from cachecore import BlockCopyInfo, CachePlanSet
            from cachecore_torch_default import TorchBackend, TorchCacheEngine

            def use(plans: CachePlanSet, copies: tuple[BlockCopyInfo, ...]) -> None:
                engine = TorchCacheEngine(plans, 1, backend=TorchBackend(), copies=copies)
                reveal_type(engine.block_caches.row("k_cache", 0))
                reveal_type(engine.block_caches["k_cache"])
                reveal_type(engine.layer_caches)
            """
        )
    )

    told, errors, status = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(source)])

    assert status == 0, told + errors
    lines = [line.partition("Revealed type is ")[2].strip('"') for line in told.splitlines() if "Revealed" in line]
    tensor = "torch._tensor.Tensor"
    assert [line.replace("builtins.", "") for line in lines] == [tensor, tensor, f"tuple[tuple[{tensor}, ...], ...]"]
