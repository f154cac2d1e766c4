"""A check: one contract, put to one backend, at one level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachecore.testing.subject import Subject

__all__ = ["DEVICE_LEVELS", "LEVELS", "Check", "Trial", "check", "trials_of"]

LEVELS = MappingProxyType(
    {
        "discovery": "the plugin is found, probes quickly, loads, and is what it says",
        "layout": "the policy's layouts place every row once, aligned, for both tiers",
        "golden": "published models take the bytes that were worked out by hand",
        "memory": "allocations are exact, zeroed, aligned, and refused whole",
        "views": "tensors have the right shape, dtype and strides, and alias the pools",
        "copy": "block copies are bit-exact and touch nothing else",
        "device-ids": "copies with device-resident ids, and in graphs",
        "order": "work of other streams is waited for, and never overtaken",
        "swap": "blocks survive the way to the host tier and back, whatever its layout",
        "states": "slots are zeroed, copied and swapped; rows belong to layers",
        "lifetime": "close gives everything back, once",
        "sleep": "the device has its memory back until wake, which brings back what was kept",
        "errors": "wrong ids are refused, and nothing changes",
        "capabilities": "what is declared unsupported refuses, what is declared works",
    }
)
"""Levels in the order in which they run, and what each is about."""

DEVICE_LEVELS = tuple(level for level in LEVELS if level not in ("discovery", "layout", "golden"))
"""Levels that need the device; the others run anywhere."""

CheckFunction = Callable[..., str | None]
"""Takes a subject, and a case where there are cases. Returns what is worth reporting, or None."""


@dataclass(frozen=True, slots=True)
class Check:
    """One contract. With ``cases`` it is put once for each; a case is anything with a ``name``."""

    level: str
    name: str
    function: CheckFunction
    cases: tuple[Any, ...] = ()

    @property
    def title(self) -> str:
        """What the contract is, from the function's docstring."""
        return (self.function.__doc__ or self.name).strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class Trial:
    """One check with one of its cases."""

    check: Check
    case: Any = None

    @property
    def id(self) -> str:
        """``level/name[case]``."""
        case = "" if self.case is None else f"[{self.case.name}]"
        return f"{self.check.level}/{self.check.name}{case}"

    def __call__(self, subject: Subject) -> str | None:
        """Put it to ``subject``; raises :class:`Fault`, :class:`Skipped`, or whatever the backend raised."""
        arguments = (subject,) if self.case is None else (subject, self.case)
        return self.check.function(*arguments)


def check(level: str, name: str, cases: Sequence[Any] = ()) -> Callable[[CheckFunction], Check]:
    """Make a function the check ``name`` of ``level``."""

    def made(function: CheckFunction) -> Check:
        return Check(level, name, function, tuple(cases))

    return made


def trials_of(checks: Iterable[Check]) -> list[Trial]:
    """Every check with every case of it."""
    return [Trial(one, case) for one in checks for case in (one.cases or (None,))]
