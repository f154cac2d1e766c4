"""Ask built operators which block caches they need, and give each its row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from cachecore.asking import shown
from cachecore.errors import PlanError
from cachecore.schema import BlockCacheBinding, BlockCacheRequest, BlockCacheRequestContext, CacheTensorSpec

__all__ = ["BlockCacheConsumer", "CollectedCaches", "collect"]

_METHODS = ("get_block_cache_requests", "bind_block_caches")


class BlockCacheConsumer(ABC):
    """An operator that keeps block caches. Inherit it, or give a class both methods.

    ``bind_block_caches`` may be called again (a second sizing pass, a wake-up) and gets the earlier
    bindings back, or ``()``, when binding another operator of the model failed.
    """

    block_cache_bindings: tuple[BlockCacheBinding, ...] = ()

    @abstractmethod
    def get_block_cache_requests(self, context: BlockCacheRequestContext) -> Sequence[BlockCacheRequest]:
        """What this operator needs in every kernel page; empty for nothing."""

    def bind_block_caches(self, bindings: tuple[BlockCacheBinding, ...]) -> None:
        """Take one binding for each request, in the same order."""
        self.block_cache_bindings = bindings


@dataclass(frozen=True, slots=True)
class CollectedCaches:
    """What the operators of one model asked for: specs a group, and the bindings to hand back."""

    specs: dict[str, tuple[CacheTensorSpec, ...]]
    bindings: tuple[tuple[Any, tuple[BlockCacheBinding, ...]], ...]

    def bind(self) -> None:
        """Hand every operator its rows; when one refuses, all get their earlier bindings back."""
        done: list[tuple[Any, tuple[BlockCacheBinding, ...]]] = []
        try:
            for consumer, bindings in self.bindings:
                done.append((consumer, tuple(getattr(consumer, "block_cache_bindings", ()))))
                consumer.bind_block_caches(bindings)
        except BaseException as error:
            for consumer, earlier in reversed(done):
                try:
                    consumer.bind_block_caches(earlier)
                except BaseException as again:  # noqa: BLE001  # one that cannot go back must not keep the others bound
                    name = type(consumer).__qualname__
                    error.add_note(f"{name} could not take its earlier bindings back: {shown(again)}")
            raise


def collect(modules: Iterable[Any], context: BlockCacheRequestContext) -> CollectedCaches:
    """Walk ``modules`` (such as ``model.modules()``) and number the rows of every cache name.

    Nothing is bound yet: call :meth:`CollectedCaches.bind` once the plan stands. A module met twice
    is one consumer. Rows are per name, over all groups, in the order met.

    Raises
    ------
    TypeError
        When a module has one of the two methods only, or returns something else than requests.
    PlanError
        When one module asks for a name twice, or ``shared_with`` names no row.
    """
    asked: list[tuple[Any, tuple[BlockCacheRequest, ...]]] = []
    seen: set[int] = set()
    spelled: set[type] = set()
    for module in modules:
        if id(module) in seen:
            continue
        seen.add(id(module))
        kind = type(module)
        if not _is_consumer(module, kind, spelled):
            continue
        requests = module.get_block_cache_requests(context)
        asked.append((module, _checked(requests, kind.__qualname__)))
    return _number(asked)


def _is_consumer(module: Any, kind: type, spelled: set[type]) -> bool:
    found = [callable(getattr(module, name, None)) for name in _METHODS]
    if all(found):
        return True
    if any(found):
        has, lacks = _METHODS if found[0] else reversed(_METHODS)
        raise TypeError(f"{kind.__qualname__} has {has}() but no {lacks}(); a block-cache operator needs both")
    if kind not in spelled:
        spelled.add(kind)
        names = [name for name in dir(kind) if ("cache" in name or "block" in name) and not name.startswith("_")]
        for method in _METHODS:
            near = get_close_matches(method, names, n=1, cutoff=0.9)
            if near:
                raise TypeError(
                    f"{kind.__qualname__}.{near[0]}() looks like {method}() misspelt; a cache would be dropped silently"
                )
    return False


def _checked(requests: Any, owner: str) -> tuple[BlockCacheRequest, ...]:
    if isinstance(requests, (str, BlockCacheRequest)) or not isinstance(requests, Iterable):
        raise TypeError(f"{owner}.get_block_cache_requests() must return a sequence of requests, not {shown(requests)}")
    listed = tuple(requests)
    names = set()
    for request in listed:
        if not isinstance(request, BlockCacheRequest):
            raise TypeError(
                f"{owner}.get_block_cache_requests() returned {shown(request)}, which is no BlockCacheRequest"
            )
        if request.name in names:
            raise PlanError(
                f"{owner} asks for cache {request.name!r} twice; one operator has one row of a name", cache=request.name
            )
        names.add(request.name)
    return listed


class _Rows:
    """One tensor while it grows: the request that shaped it, and its rows so far."""

    __slots__ = ("consumer_rows", "request", "row_ids")

    def __init__(self, request: BlockCacheRequest) -> None:
        self.request = request
        self.consumer_rows: list[int] = []
        self.row_ids: list[int] = []


def _number(asked: Sequence[tuple[Any, tuple[BlockCacheRequest, ...]]]) -> CollectedCaches:
    tensors: dict[tuple[object, ...], _Rows] = {}
    next_row: dict[str, int] = {}
    owners: dict[tuple[str, int], tuple[int, BlockCacheRequest]] = {}
    rows: dict[int, int] = {}
    for _, requests in asked:
        for request in requests:
            if request.shared_with is not None:
                continue
            row = next_row.get(request.name, 0)
            next_row[request.name] = row + 1
            rows[id(request)] = row
            row_id = row if request.layer is None else request.layer
            if (request.name, row_id) in owners:
                raise PlanError(
                    f"cache {request.name!r}: two operators claim layer or consumer id {row_id}; give every operator "
                    "its own layer=, or none of them",
                    cache=request.name,
                    layer=row_id,
                )
            owners[request.name, row_id] = row, request
            key = (request.group, request.name, *request.contract())
            tensor = tensors.get(key)
            if tensor is None:
                tensor = tensors[key] = _Rows(request)
            tensor.consumer_rows.append(row)
            tensor.row_ids.append(row_id)
    specs: dict[str, list[CacheTensorSpec]] = {}
    for tensor in tensors.values():
        spec = CacheTensorSpec(
            **tensor.request.payload(), row_ids=tuple(tensor.row_ids), consumer_rows=tuple(tensor.consumer_rows)
        )
        specs.setdefault(tensor.request.group, []).append(spec)
    bindings = tuple(
        (
            module,
            tuple(
                BlockCacheBinding(
                    request.name,
                    rows[id(request)] if request.shared_with is None else _shared_row(request, owners),
                    request.group,
                )
                for request in requests
            ),
        )
        for module, requests in asked
        if requests
    )
    return CollectedCaches({group: tuple(listed) for group, listed in specs.items()}, bindings)


def _shared_row(request: BlockCacheRequest, owners: dict[tuple[str, int], tuple[int, BlockCacheRequest]]) -> int:
    owner = owners.get((request.name, request.shared_with or 0))
    if owner is None:
        raise PlanError(
            f"cache {request.name!r}: layer {request.layer} shares the row of {request.shared_with}, but no operator "
            "with that layer owns one",
            cache=request.name,
        )
    row, first = owner
    if (request.group, request.contract()) != (first.group, first.contract()):
        raise PlanError(
            f"cache {request.name!r}: layer {request.layer} asks for {request.desc} in group {request.group!r}, but "
            f"layer {request.shared_with}, whose row it shares, asked for {first.desc} in group {first.group!r}",
            cache=request.name,
        )
    return row
