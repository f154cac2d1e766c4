"""The forward call under way: which parts of which layers have seen it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cachecore_transformers.models import LayerCache

__all__ = ["READ", "WRITTEN", "ForwardCall", "needed_parts"]

READ = 1
"""A layer has fetched a state; it may write it in place without another call."""
WRITTEN = 2
"""A layer has handed over keys and values, entries or a state."""

Part = tuple[int, str]


class ForwardCall:
    """One forward call, from its first layer's first part to its last layer's last.

    ``needed`` says which parts make a call whole: ``(layer, name)`` to :data:`READ` or :data:`WRITTEN`.
    """

    def __init__(self, needed: Mapping[Part, int]) -> None:
        self._needed = needed
        self.num_layers = len({layer for layer, _ in needed})
        self._stages: dict[Part, int] = {}
        self._num_missing = len(needed)
        self._is_writing = False
        self.start = 0
        """Tokens before it."""
        self.tokens = 0
        self.is_guess = False
        """Whether ``tokens`` is what a layer of states took it to be, until one of keys and values says."""

    @property
    def under_way(self) -> bool:
        """Whether some layer has seen it."""
        return bool(self._stages)

    @property
    def is_whole(self) -> bool:
        """Whether every layer has, and none was interrupted while it wrote."""
        return not self._num_missing and not self._is_writing

    @property
    def layers(self) -> list[int]:
        """The layers that have seen it."""
        return sorted({layer for layer, _ in self._stages})

    @property
    def has_written(self) -> bool:
        """Whether some layer has handed something over."""
        return WRITTEN in self._stages.values()

    def stage(self, part: Part) -> int:
        """How far ``part`` is; 0 before."""
        return self._stages.get(part, 0)

    def record(self, part: Part, stage: int) -> None:
        """``part`` comes to ``stage``: it writes, or is handed what it may write, until :meth:`written`."""
        self._is_writing = True
        comes = self.stage(part) < self._needed.get(part, 0) <= stage
        self._stages[part] = stage  # first: a call that counts parts is under way
        self._num_missing -= comes

    def written(self) -> None:
        """The part that was recorded last stands where it belongs."""
        self._is_writing = False

    def forget(self) -> None:
        """No call is under way."""
        self._num_missing = len(self._needed)  # first: what is interrupted here is no whole call, which would count
        self._stages.clear()
        self._is_writing = False
        self.tokens = 0
        self.is_guess = False


def needed_parts(layers: Iterable[LayerCache]) -> dict[Part, int]:
    """What makes a call whole. States may be written in place, without a word after they were fetched.

    DeepSeek-V4's go with its entries, which are handed over in every call.
    """
    needed: dict[Part, int] = {}
    for layer in layers:
        if layer.group is not None:
            needed[layer.layer, "kv"] = WRITTEN
        needed.update({(layer.layer, entry.name): WRITTEN for entry in layer.entries})
        for state in layer.states:
            if not layer.entries:
                needed[layer.layer, state.name] = READ
    return needed
