"""Every exception that cachecore raises on purpose.

Each also inherits the builtin that a caller would catch without knowing cachecore. Messages say
what was wrong (with the value), what was expected, and what to do; the values are attributes too.
A wrong type is a plain ``TypeError``.
"""

from __future__ import annotations


class CacheCoreError(Exception):
    """Root of cachecore's errors; keyword arguments become attributes.

    >>> PlanError("no heads", cache="k_cache").cache
    'k_cache'
    """

    def __init__(self, message: str, **values: object) -> None:
        super().__init__(message)
        self.message = message
        for name, value in values.items():
            setattr(self, name, value)

    def __str__(self) -> str:
        return self.message


class PlanError(CacheCoreError, ValueError):
    """A request, spec, geometry, group, plan or sizing input that cannot be served."""


class LayoutError(CacheCoreError, ValueError):
    """A layout that does not match its specs: a row missing, doubled, overlapping or misaligned."""


class BlockIndexError(CacheCoreError, IndexError):
    """A block, slot or row id outside its range."""


class BlockPairsError(CacheCoreError, ValueError):
    """Copy pairs that are doubled, overlapping or of unequal length."""


class AllocationError(CacheCoreError, MemoryError):
    """Memory that could not be had: which pool, how many bytes, on which device, how much was free."""


class CacheLookupError(CacheCoreError, KeyError):
    """A cache name, row or layer that the plan does not have."""


class AgreementError(CacheCoreError, RuntimeError):
    """Ranks that cannot agree: one is missing, late or dead, or was built from another model."""


class MigrationError(CacheCoreError, ValueError):
    """Reserved for migration between workers, which is not there yet; nothing raises it."""


class EngineStateError(CacheCoreError, RuntimeError):
    """An operation that the engine's state (closed, asleep) or capability does not allow."""


class PluginError(CacheCoreError, RuntimeError):
    """A plugin that failed to import, broke its contract, or cannot be told from another."""


class NoBackendError(CacheCoreError, LookupError):
    """No installed backend serves the device."""
