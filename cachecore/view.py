"""Named views: what an operator uses to find its rows of the caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from cachecore.errors import BlockIndexError, CacheLookupError, EngineStateError
from cachecore.meaning import whole
from cachecore.schema import CacheTensorSpec

__all__ = ["NamedCacheView", "SpecViews"]

A = TypeVar("A")


class SpecViews(NamedTuple, Generic[A]):
    """One spec with its whole tensor (None when its rows are not equally spaced) and its row views."""

    spec: CacheTensorSpec
    tensor: A | None
    rows: tuple[A, ...]


class NamedCacheView(Mapping[str, A], Generic[A]):
    """Read-only mapping from cache name to tensor, with access by consumer row and by layer.

    Row views are made once, here; :meth:`row` is one dictionary access. Take tensors into compiled
    or captured code, never this object.
    """

    __slots__ = ("_closed", "_layers", "_rows", "_specs")

    def __init__(self, views: Sequence[SpecViews[A]]) -> None:
        self._specs: dict[str, list[SpecViews[A]]] = {}
        self._rows: dict[tuple[str, int], A] = {}
        self._layers: dict[tuple[str, int], A] = {}
        self._closed: str | None = None
        self.open(views)

    def open(self, views: Sequence[SpecViews[A]]) -> None:
        """Hand out these from now on, as after a sleep."""
        self._specs.clear()
        self._closed = None
        for entry in views:
            spec = entry.spec
            self._specs.setdefault(spec.name, []).append(entry)
            self._layers.update(zip(((spec.name, row_id) for row_id in spec.row_ids), entry.rows, strict=True))
            if spec.consumer_rows is not None:
                self._rows.update(zip(((spec.name, row) for row in spec.consumer_rows), entry.rows, strict=True))

    def row(self, name: str, row: int) -> A:
        """The tensor ``(entries, *shape)`` of the operator bound to ``row`` of ``name``.

        Raises
        ------
        CacheLookupError, BlockIndexError
            For a name without consumer rows, or a row out of range.
        EngineStateError
            While the engine is asleep, and after it was closed.
        """
        try:
            return self._rows[name, row]
        except (KeyError, TypeError):
            return self._find(self._rows, name, row, "consumer row")

    def layer(self, name: str, layer: int) -> A:
        """The tensor ``(entries, *shape)`` of global ``layer`` of ``name``; errors as :meth:`row`."""
        try:
            return self._layers[name, layer]
        except (KeyError, TypeError):
            return self._find(self._layers, name, layer, "layer")

    def __getitem__(self, name: str) -> A:
        self._check_open()
        entries = self._entries(name)
        if len(entries) > 1:
            raise EngineStateError(
                f"cache {name!r} has {len(entries)} tensors; use row() or layer() to say which", cache=name
            )
        tensor = entries[0].tensor
        if tensor is None:
            raise EngineStateError(
                f"cache {name!r} has no whole tensor: its rows are not equally spaced in one pool; use row()",
                cache=name,
            )
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def close(self, reason: str) -> None:
        """Drop every tensor; later access raises :class:`EngineStateError` with ``reason``."""
        self._closed = reason
        self._rows.clear()
        self._layers.clear()
        for name, entries in self._specs.items():
            self._specs[name] = [SpecViews(entry.spec, None, ()) for entry in entries]

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a view aliases device memory of its engine and cannot be copied or pickled; clone the tensors it hands out"
        )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise EngineStateError(self._closed)

    def _entries(self, name: str) -> list[SpecViews[A]]:
        try:
            return self._specs[name]
        except KeyError:
            raise CacheLookupError(
                f"cache {name!r} does not exist; the caches are {', '.join(self._specs)}", cache=name
            ) from None

    def _find(self, table: dict[tuple[str, int], A], name: str, key: Any, what: str) -> A:
        self._check_open()
        self._entries(name)
        number = whole(key, what)
        if (name, number) in table:
            return table[name, number]
        known = sorted(row for cache, row in table if cache == name)
        if not known:
            raise CacheLookupError(f"cache {name!r} has no {what}s; standard K/V is found with layer()", cache=name)
        raise BlockIndexError(
            f"{what} {number} of cache {name!r} does not exist; it has {len(known)}, from {known[0]} to {known[-1]}",
            cache=name,
            row=number,
        )
