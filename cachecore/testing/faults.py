"""What a check raises: a fault of the backend with its usual cause, or the reason why it does not apply."""

from __future__ import annotations

__all__ = ["Fault", "Skipped"]


class Fault(AssertionError):  # noqa: N818  # the fault is the backend's, not an error of the kit
    """A contract that the backend does not keep.

    The message says what is wrong, what was expected, what was found and where, and the usual cause.
    """

    def __init__(
        self, what: str, *, expected: object = None, found: object = None, at: str = "", cause: str = ""
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.at = at
        self.cause = cause
        message = what
        if expected is not None:
            message += f": expected {expected}"
        if found is not None:
            message += f"{',' if expected is not None else ':'} found {found}"
        if at:
            message += f", at {at}"
        if cause:
            message += f". Usual cause: {cause}"
        super().__init__(message)


class Skipped(Exception):  # noqa: N818  # it is no error
    """A check that does not apply to this backend or machine, and why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
