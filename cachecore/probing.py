"""Asking a plugin's records: under a time limit, with every failure and every wrong answer turned into words."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from cachecore.asking import asked, shown, told
from cachecore.backend import BackendInfo, CacheBackend
from cachecore.copying import BlockCopyInfo, CopySide
from cachecore.device import DeviceSpec
from cachecore.errors import PluginError
from cachecore.policy import LayoutPolicy

__all__ = [
    "IMPORT_LIMITS",
    "PROBE_LIMIT_S",
    "answer_within",
    "capabilities_of",
    "load_backend",
    "policy_of",
    "probe_backend",
    "probe_copy",
    "unclaimed",
]

PROBE_LIMIT_S = 5.0
"""A probe that has not answered by then is excluded and named. What it spends on imports is counted apart."""

IMPORT_LIMITS = 12
"""How many times the limit a probe's imports may take: a cold ``import torch`` on a slow disk outlasts 5 s."""

_LOOK_S = 0.05
"""How often a probe is looked at, to tell an import from a wait."""

_UNANSWERED: dict[Hashable, threading.Thread] = {}
"""Probes left behind while they hang. The thread keeps its probe alive, so that an ``id`` in the key stays its own."""


def probe_backend(info: BackendInfo, device: DeviceSpec, limit_s: float = PROBE_LIMIT_S) -> str | None:
    """None when ``info`` serves ``device``, else the reason why not.

    A probe that hangs is left behind in a daemon thread: Python cannot stop it, and it must not stop us. It is not
    asked about that device again while it hangs.
    """
    claim = unclaimed(info, device)
    return answer_within(lambda: info.probe(device), limit_s, (id(info.probe), device)) if claim is None else claim


def probe_copy(info: BlockCopyInfo, src: CopySide, dst: CopySide) -> str | None:
    """None when ``info`` serves the pair, else the reason why not.

    A probe that hangs is not asked about any other pair while it does: an engine has three a group.
    """
    limit_s = PROBE_LIMIT_S if info.probe_limit_s is None else info.probe_limit_s
    return answer_within(lambda: info.probe(src, dst), limit_s, id(info.probe))


def unclaimed(info: BackendInfo, device: DeviceSpec) -> str | None:
    """None when ``info`` claims to serve the device's type, present or not, else the reason why not."""
    if "*" in info.device_types or device.type in info.device_types:
        return None
    return f"serves {', '.join(info.device_types)}, not {device.type}"


def answer_within(probe: Callable[[], object], limit_s: float, key: Hashable = None) -> str | None:
    """Run ``probe`` in a thread; None, its reason, or what went wrong with it. ``key`` says whose hang to remember."""
    hanging = _UNANSWERED.get(key)
    if hanging is not None and hanging.is_alive():
        return "probe did not answer when it was asked before, and still hangs"
    answer: list[str | None] = []
    thread = threading.Thread(target=_ask, args=(probe, answer), name="cachecore-probe", daemon=True)
    thread.start()
    given_up = _wait(thread, limit_s)
    if answer:
        return answer[0]
    if key is not None and given_up is not None:
        _UNANSWERED[key] = thread
    return given_up or "probe ended its thread without an answer"


def _ask(probe: Callable[[], object], answer: list[str | None]) -> None:
    try:
        result = probe()
        if result is None:
            answer.append(None)
        elif isinstance(result, str):
            answer.append(result if result.strip() else f"probe gave no reason: it returned {result!r}")
        else:
            answer.append(f"probe returned {shown(result)}; expected None or the reason why not")
    except BaseException as error:  # a probe may raise anything, SystemExit too; it becomes the reason
        try:
            answer.append(f"probe raised {told(error)}")
        except BaseException:  # a __str__ that raises KeyboardInterrupt; nobody pressed Ctrl-C in this thread
            answer.append(f"probe raised {type(error).__name__}, which cannot say what it is")


def _wait(thread: threading.Thread, limit_s: float) -> str | None:
    """None once the thread ended, else why it is given up."""
    left, imports_left = limit_s, limit_s * IMPORT_LIMITS
    now = time.monotonic()
    while True:
        thread.join(min(_LOOK_S, left))
        if not thread.is_alive():
            return None
        before, now = now, time.monotonic()
        if _is_importing(thread):
            imports_left -= now - before
        else:
            left -= now - before
        if imports_left <= 0:
            return f"probe did not answer: its imports took more than {limit_s * IMPORT_LIMITS:g} s"
        if left <= 0:
            return f"probe did not answer within {limit_s:g} s"


def _is_importing(thread: threading.Thread) -> bool:
    """Whether the thread is inside an import, or waits for another thread's."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def policy_of(info: BackendInfo) -> LayoutPolicy | str:
    """The backend's policy, or the reason why there is none."""
    try:
        policy: Any = info.load_policy()
        if not isinstance(policy, LayoutPolicy):
            return f"load_policy() returned {shown(policy)}, which is no LayoutPolicy"
        for field in ("name", "version"):
            value = getattr(policy, field, None)
            if not isinstance(value, str) or not value:
                return f"load_policy() returned a policy whose {field} is {shown(value)}; expected a non-empty string"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"load_policy() raised {told(error)}"
    return policy


def load_backend(info: BackendInfo, who: str) -> CacheBackend[Any]:
    """The backend itself; ``who`` names it and its plugin.

    Raises
    ------
    PluginError
        When it raises, or returns something else than a backend with a name and a policy.
    """
    loaded: Any = asked(f"{who}: load()", info.load)
    if not isinstance(loaded, CacheBackend):
        raise PluginError(f"{who}: load() returned {shown(loaded)}, which is no CacheBackend")
    name: Any = asked(f"{who}: name", lambda: getattr(loaded, "name", None))
    policy: Any = asked(f"{who}: policy", lambda: getattr(loaded, "policy", None))
    if not isinstance(name, str) or not name:
        raise PluginError(f"{who}: load() returned a backend whose name is {shown(name)}; expected a non-empty string")
    if not isinstance(policy, LayoutPolicy):
        raise PluginError(f"{who}: load() returned a backend whose policy is {shown(policy)}; expected a LayoutPolicy")
    return loaded


def capabilities_of(backend: CacheBackend[Any]) -> Mapping[str, str | None]:
    """What a backend says it can do: None for able, else the reason why not."""
    found: Any = asked(f"backend {backend.name!r}: capabilities()", backend.capabilities)
    if not isinstance(found, Mapping):
        raise PluginError(f"backend {backend.name!r}: capabilities() returned {shown(found)}; expected a mapping")
    return found
