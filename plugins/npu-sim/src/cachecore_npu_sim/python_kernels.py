"""Kernels of the Python device: a few of its own, and CPU kernels over the same bytes for everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from cachecore_npu_sim.memory import MEMORY

__all__ = ["register_kernels"]

aten = torch.ops.aten
_CPU = torch._C.DispatchKey.CPU
_SET = aten.set_.source_Storage_storage_offset
_ALIASING = {
    "as_strided": aten.as_strided.default,
    "view": aten.view.default,
    "_reshape_alias": aten._reshape_alias.default,
    "unfold": aten.unfold.default,
    "set_.source_Storage_storage_offset": _SET,
}
"""CPU kernels that only make views run on tensors of the device unchanged."""


def register_kernels() -> tuple[torch.library.Library, ...]:
    """Register everything; the kernels last as long as what is returned."""
    library = torch.library.Library("aten", "IMPL", "PrivateUse1")
    for name, overload in _ALIASING.items():
        library.impl(name, _on_cpu_key(overload))
    library.impl("empty.memory_format", _empty)
    library.impl("empty_strided", _empty_strided)
    library.impl("set_.source_Storage", _set_storage)
    library.impl("set_.source_Tensor", _set_tensor)
    library.impl("_copy_from", _copy_from)
    library.impl("_copy_from_and_resize", _copy_from_and_resize)
    library.impl("resize_", _resize_)
    library.impl("_local_scalar_dense", lambda tensor: _host_alias(tensor).item())
    others = torch.library.Library("_", "IMPL")
    others.fallback(_fallback, "PrivateUse1")
    return library, others


def _on_cpu_key(overload: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: overload._op_dk(_CPU, *args, **kwargs)


def _on_device(tensor: Tensor) -> bool:
    return tensor.device.type not in ("cpu", "meta")


def _host_alias(tensor: Tensor) -> Tensor:
    """A CPU tensor of the same geometry over the same bytes."""
    storage = tensor.untyped_storage()
    host = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), torch.device("cpu"), storage.nbytes())
    alias = torch.empty(0, dtype=tensor.dtype)
    return alias.set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())


def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Tensor:
    dtype = dtype or torch.get_default_dtype()
    numel = 0 if 0 in tuple(size) else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    raw = MEMORY.allocate(numel * dtype.itemsize)
    return aten.as_strided.default(aten.view.dtype(raw, dtype), size, stride, 0)


def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    planned = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format or torch.contiguous_format)
    return _empty_strided(size, planned.stride(), dtype=planned.dtype)


def _set_storage(tensor: Tensor, storage: Any) -> Tensor:
    return _SET._op_dk(_CPU, tensor, storage, 0, (storage.nbytes() // tensor.dtype.itemsize,), (1,))


def _set_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    where = source.storage_offset(), source.size(), source.stride()
    return _SET._op_dk(_CPU, tensor, source.untyped_storage(), *where)


def _copy_from(src: Tensor, dst: Tensor, non_blocking: bool = False) -> Tensor:
    (_host_alias(dst) if _on_device(dst) else dst).copy_(_host_alias(src) if _on_device(src) else src)
    return dst


def _copy_from_and_resize(src: Tensor, dst: Tensor) -> Tensor:
    if dst.shape != src.shape:
        dst.resize_(src.shape)
    return _copy_from(src, dst)


def _resize_(tensor: Tensor, size: Sequence[int], *, memory_format: Any = None) -> Tensor:
    planned = torch.empty(size, device="meta")
    needed = (planned.numel() + tensor.storage_offset()) * tensor.dtype.itemsize
    storage = tensor.untyped_storage()
    if needed > storage.nbytes():
        fresh = aten.view.dtype(MEMORY.allocate(needed), tensor.dtype)
        if storage.nbytes():
            elements = (storage.nbytes() // tensor.dtype.itemsize,)
            old = _host_alias(aten.as_strided.default(tensor, elements, (1,), 0)).view(torch.uint8)
            _host_alias(fresh).view(torch.uint8)[: old.numel()].copy_(old)
        storage = fresh.untyped_storage()
    return _SET._op_dk(_CPU, tensor, storage, tensor.storage_offset(), size, planned.stride())


def _fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Relabel arguments as CPU tensors over the same bytes, run the CPU kernel, relabel what it returns."""
    pairs: list[tuple[Tensor, Tensor]] = []  # (alias, tensor of the device)

    def down(tensor: Tensor) -> Tensor:
        if not _on_device(tensor):
            return tensor
        for alias, original in pairs:
            if original is tensor:
                return alias
        pairs.append((_host_alias(tensor), tensor))
        return pairs[-1][0]

    resized = [  # an empty out= is about to be resized, which an alias cannot be
        (torch.empty(0, dtype=value.dtype), value)
        for value in kwargs.values()
        if isinstance(value, Tensor) and _on_device(value) and not value.numel()
    ]
    pairs += resized
    args, kwargs = tree_map_only(Tensor, down, (_numbers_as_tensors(op, args), dict(kwargs)))
    args, kwargs = tree_map(_host_device, (args, kwargs))
    result = op(*args, **kwargs)
    for alias, original in resized:
        original.resize_(alias.shape)
        _copy_from(alias, original)

    def up(tensor: Tensor) -> Tensor:
        base = tensor.untyped_storage().data_ptr()
        for alias, original in pairs:
            if tensor is alias:
                return original
        for alias, original in pairs:
            if base and base == alias.untyped_storage().data_ptr():
                return aten.as_strided.default(original, tensor.size(), tensor.stride(), tensor.storage_offset())
        moved = _empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        return _copy_from(tensor, moved)

    return tree_map_only(Tensor, up, result)


def _numbers_as_tensors(op: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """Undo what torch does for kernels in Python: of ``x % 2``, it hands them ``2`` and not a tensor."""
    declared = zip(op._schema.arguments, args, strict=False)
    return tuple(
        torch.tensor(value)
        if isinstance(value, bool | int | float) and isinstance(one.type, torch.TensorType)
        else value
        for one, value in declared
    )


def _host_device(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value.type not in ("cpu", "meta") else value
