"""What a torch device must be able to do: ``python battery.py KIND NAME`` prints what failed, as JSON."""

from __future__ import annotations

import gc
import io
import json
import sys
from collections.abc import Callable, Iterator

import torch

DTYPES = ["float16", "bfloat16", "float32", "int8", "uint8", "float8_e4m3fn", "int32", "int64", "bool"]


def bytes_and_views(npu: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "current_accelerator", lambda: torch.accelerator.current_accelerator().type == npu.type
    yield "device_count", lambda: torch.accelerator.device_count() >= 1
    for name in DTYPES:
        dtype = getattr(torch, name)
        yield (
            f"zeros {name}",
            lambda dtype=dtype: not torch.zeros(3, 4, dtype=dtype, device=npu).view(torch.uint8).cpu().any(),
        )
    pool = torch.zeros(4, 6, 64, dtype=torch.uint8, device=npu)
    part = lambda: pool[:, :, 16:48].view(torch.float16).view(4, 6, 2, 8)  # noqa: E731
    yield "address", lambda: pool.data_ptr() and pool.data_ptr() % 512 == 0
    yield "typed view of a slice", lambda: part().shape == (4, 6, 2, 8)

    def alias() -> bool:
        part()[1, 2].fill_(1.5)
        found = pool.cpu()
        return bool((found[1, 2, 16:48].view(torch.float16) == 1.5).all()) and int(found.ne(0).sum()) == 16

    yield "a write through a view is in the pool", alias
    yield "as_strided", lambda: torch.as_strided(pool, (6, 4), (64, 384), 0).stride() == (64, 384)
    yield "permute and transpose", lambda: pool.permute(1, 0, 2).transpose(0, 1).is_contiguous()
    yield "expand", lambda: pool[0:1].expand(3, 6, 64).stride()[0] == 0
    yield "storage nbytes", lambda: pool.untyped_storage().nbytes() == 4 * 6 * 64

    def shared() -> bool:
        view = torch.empty(0, dtype=torch.int8, device=npu).set_(pool.untyped_storage(), 64, (5, 64), (64, 1))
        return view.data_ptr() == pool.data_ptr() + 64

    yield "set_ on shared storage", shared
    yield "clone and contiguous", lambda: pool[:, :, ::2].contiguous().is_contiguous()
    yield "resize_", lambda: torch.empty(0, device=npu).resize_(4, 2).shape == (4, 2)
    yield "zero_ on a slice", lambda: int(torch.ones(4, 4, device=npu)[1:3].zero_().sum()) == 0
    yield "item", lambda: torch.tensor(3.5).to(npu).item() == 3.5
    yield "repr", lambda: str(torch.arange(3).to(npu))
    yield "arange, full, randn", lambda: len((torch.arange(3, device=npu), torch.randn(2, device=npu))) == 2
    yield "is_<name>", lambda: getattr(getattr(torch.ones(2), npu.type)(), f"is_{npu.type}")
    yield "generator", lambda: torch.Generator(device=npu.type)


def copies(npu: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    src = torch.randint(0, 255, (4, 6, 64), dtype=torch.uint8)
    moved, ids = src.to(npu), torch.tensor([5, 1, 3])
    yield "upload", lambda: torch.equal(torch.arange(10).to(npu).cpu(), torch.arange(10))
    yield (
        "strided download",
        lambda: torch.equal(torch.empty(4, 6, dtype=torch.uint8).copy_(moved[:, :, 17]), src[:, :, 17]),
    )
    yield (
        "casting copy",
        lambda: torch.equal(torch.empty(4, device=npu).copy_(torch.arange(4)).cpu(), torch.arange(4.0)),
    )
    yield "index_select", lambda: torch.equal(moved.index_select(1, ids.to(npu)).cpu(), src.index_select(1, ids))
    yield "index get", lambda: torch.equal(moved[:, ids.to(npu)].cpu(), src[:, ids])

    def index_copy() -> bool:
        here, there, values = src.clone(), src.to(npu), torch.randint(0, 255, (4, 3, 64), dtype=torch.uint8)
        here.index_copy_(1, ids, values)
        there.index_copy_(1, ids.to(npu), values.to(npu))
        return torch.equal(here, there.cpu())

    def index_put() -> bool:
        here, there = src.clone(), src.to(npu)
        here[:, ids] = here[:, [0, 2, 4]]
        there[:, ids.to(npu)] = there[:, [0, 2, 4]]
        return torch.equal(here, there.cpu())

    def foreach() -> bool:
        dst = [torch.zeros(8, dtype=torch.uint8, device=npu) for _ in range(3)]
        torch._foreach_copy_(dst, [torch.full((8,), i + 1, dtype=torch.uint8) for i in range(3)])
        return [int(one.cpu().sum()) for one in dst] == [8, 16, 24]

    def saved() -> bool:
        buffer = io.BytesIO()
        torch.save(torch.ones(2, device=npu), buffer)
        buffer.seek(0)
        return torch.load(buffer, map_location="cpu").device.type == "cpu"

    yield "index_copy_", index_copy
    yield "index put", index_put
    yield "_foreach_copy_", foreach
    yield (
        "masked_fill_",
        lambda: (
            int(torch.ones(4, device=npu).masked_fill_(torch.tensor([True, False, True, False]).to(npu), 0).sum()) == 2
        ),
    )
    yield "matmul", lambda: bool(((torch.ones(2, 3, device=npu) @ torch.ones(3, 2, device=npu)).cpu() == 3).all())
    yield "a number where a tensor may be", lambda: (torch.arange(5, device=npu) % 3).tolist() == [0, 1, 2, 0, 1]
    yield "linear", lambda: torch.nn.Linear(4, 2).to(npu)(torch.ones(1, 4, device=npu)).shape == (1, 2)
    yield "inference mode", torch.inference_mode()(lambda: torch.zeros(2, device=npu).fill_(1).sum().item())
    yield "save and load", saved


def memory(npu: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    module = torch.get_device_module(npu)

    def accounting() -> bool:
        gc.collect()
        before = module.memory_allocated()
        taken = torch.empty(1 << 20, dtype=torch.uint8, device=npu)
        grown, view = module.memory_allocated() - before, taken[5:]
        del taken
        kept = module.memory_allocated() - before
        del view
        gc.collect()
        return grown >= 1 << 20 and kept == grown and module.memory_allocated() == before

    def refused() -> bool:
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device=npu)
        except torch.OutOfMemoryError:
            return True
        return False

    yield "mem_get_info", lambda: module.mem_get_info()[1] > 0
    yield "accounting", accounting
    yield "out of memory", refused
    yield "pinned memory", lambda: torch.empty(4, pin_memory=True).is_pinned()
    yield "accelerator.get_memory_info", torch.accelerator.get_memory_info
    yield "accelerator.memory_allocated", lambda: torch.accelerator.memory_allocated() >= 0
    yield (
        "meta planning",
        lambda: (
            torch.zeros(4, 1 << 34, 64, dtype=torch.uint8, device="meta").view(torch.float16).stride()[0] == 1 << 39
        ),
    )

    def fake() -> bool:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            pool = torch.zeros(4, 1 << 34, 64, dtype=torch.uint8, device=npu)
            return pool[:, :, 16:48].view(torch.float16).device.type == npu.type

    yield "fake tensors", fake


def streams(npu: torch.device) -> Iterator[tuple[str, Callable[[], object]]]:
    module = torch.get_device_module(npu)

    def own() -> bool:
        stream = module.Stream()
        with module.stream(stream):
            if module.current_stream() != stream:
                return False
            made = torch.zeros(4, device=npu)
            made.copy_(torch.ones(4), non_blocking=True)
            event = module.Event()
            event.record(stream)
        module.current_stream().wait_event(event)
        event.synchronize()
        return event.query() and int(made.sum()) == 4

    def generic() -> bool:
        one, two, default = torch.Stream(device=npu), torch.Stream(device=npu), torch.accelerator.current_stream()
        if one in (two, default):
            return False
        with one:
            if torch.accelerator.current_stream() != one:
                return False
        event = one.record_event()
        default.wait_event(event)
        event.synchronize()
        one.synchronize()
        return event.query() and one.query()

    def timing() -> bool:
        start, end = (torch.Event(device=npu.type, enable_timing=True) for _ in range(2))
        start.record()
        torch.ones(1 << 20, device=npu).mul_(2)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) >= 0

    yield "device module's streams", own
    yield "torch.Stream", generic
    yield "accelerator.synchronize", lambda: torch.accelerator.synchronize() or True
    yield "event timing", timing
    yield "record_stream", lambda: torch.zeros(3, device=npu).record_stream(torch.Stream(device=npu)) or True
    yield "second device", lambda: torch.zeros(2, device=torch.device(npu.type, 1)).device.index == 1
    yield "set_device_index", lambda: torch.accelerator.set_device_index(0) or True


def failures(name: str) -> dict[str, str]:
    """What does not work, with the reason."""
    npu, failed = torch.device(name), {}
    for group in (bytes_and_views, copies, memory, streams):
        for title, check in group(npu):
            try:
                found = check()
            except Exception as error:  # noqa: BLE001 - whatever a device raises is what is reported
                failed[title] = f"{type(error).__name__}: {error}".partition("\n")[0]
            else:
                if not found:
                    failed[title] = f"gave {found!r}"
    return failed


if __name__ == "__main__":
    import cachecore_npu_sim

    install = cachecore_npu_sim.install_native if sys.argv[1] == "native" else cachecore_npu_sim.install
    install(sys.argv[2])
    torch.set_num_threads(1)
    print(json.dumps(failures(sys.argv[2])))
