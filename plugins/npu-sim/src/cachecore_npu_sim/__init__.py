"""A simulated accelerator for torch: a device type ``npu`` (or another vendor's name) with real bytes.

For tests of backends where the hardware is not. Two kinds, one of them in a process:

* ``install()``: pure Python, no compiler, synchronous. No pinned memory, streams are bookkeeping,
  ``torch.accelerator``'s memory calls fail, as they do on torch_npu up to 2.12.
* ``install_native()``: C++, compiled on first use, or by ``python -m cachecore_npu_sim build``. Every
  stream is a queue with a thread of its own, so that a missing ``wait_event`` or ``record_stream`` shows;
  device addresses cannot be read by the host; page-locked memory, several devices, out-of-memory.

torch renames its spare device type once a process, so two vendors need two processes: start them with
``spawn``, never ``fork``. Without code, ``CACHECORE_NPU_SIM=npu`` (or ``mlu:native``) in the environment
installs the device when torch is imported; the C++ one must be built before, since an import of torch may
have a time limit. Importing this package imports no torch.
"""

from __future__ import annotations

import os
from types import ModuleType

__version__ = "0.1.0"

__all__ = ["VARIABLE", "install", "install_native"]

VARIABLE = "CACHECORE_NPU_SIM"
"""Names the device to install when torch is imported: ``NAME`` or ``NAME:native``."""

_installed: list[tuple[str, str, ModuleType]] = []


def install(name: str = "npu") -> ModuleType:
    """Make ``torch.device(name)`` a simulated device in pure Python; returns ``torch.<name>``. Twice is once.

    Raises
    ------
    RuntimeError
        When this process has another simulated device, or torch's spare device type is taken.
    """
    return _install(name, "python")


def install_native(name: str = "npu") -> ModuleType:
    """Make ``torch.device(name)`` the asynchronous simulated device, compiled on first use. Twice is once.

    Raises
    ------
    RuntimeError
        When this process has another simulated device, there is no compiler, or the build fails.
    """
    return _install(name, "native")


def _install(name: str, kind: str) -> ModuleType:
    if _installed:
        there, there_kind, module = _installed[0]
        if (there, there_kind) != (name, kind):
            raise RuntimeError(
                f"this process has the {there_kind} device {there!r}, so it cannot have the {kind} device {name!r}: "
                "torch renames its spare device type once; start another process"
            )
        return module
    if kind == "native":
        from cachecore_npu_sim.native_device import make_device
    else:
        from cachecore_npu_sim.python_device import make_device
    module = make_device(name)
    _installed.append((name, kind, module))
    return module


def autoload() -> None:
    """Called by torch when it is imported: installs what :data:`VARIABLE` names, or nothing. Compiles nothing."""
    name, _, kind = os.environ.get(VARIABLE, "").partition(":")
    if not name:
        return
    if kind not in ("", "python", "native"):
        raise RuntimeError(f"{VARIABLE} names the kind {kind!r}; expected NAME, NAME:python or NAME:native")
    if kind == "native":
        from cachecore_npu_sim.native_build import library_path

        if not library_path().exists():
            raise RuntimeError(
                f"{VARIABLE} asks for the C++ device, which is not built for this torch; "
                "run: python -m cachecore_npu_sim build"
            )
    try:
        _install(name, kind or "python")
    except (RuntimeError, ValueError) as error:  # torch says what is wrong with a name, not who named it
        raise RuntimeError(f"{VARIABLE} asks for a {kind or 'python'} device {name!r}: {error}") from error
