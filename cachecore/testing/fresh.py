"""Questions put to a fresh process: does the policy load without an array library, does the probe stay light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from cachecore.device import DeviceSpec
from cachecore.errors import CacheCoreError
from cachecore.layout_kinds import BASE_ALIGNMENT
from cachecore.policy import LayoutHints, LayoutPolicy
from cachecore.ranking import is_named
from cachecore.registry import PluginRegistry
from cachecore.schema import BlockCacheGeometry
from cachecore.testing.samples import BLOCK_CASES

__all__ = ["ARRAY_LIBRARIES", "fingerprint", "main", "run_fresh"]

ARRAY_LIBRARIES = frozenset(
    {"torch", "torch_npu", "torch_mlu", "numpy", "triton", "cupy", "jax", "tensorflow", "paddle", "mindspore"}
)
"""What a policy must not need."""

_LIMIT_S = 30.0
_PAGE = 256


class _Blocker:
    """Finds no array library."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse, or have no opinion."""
        if name.partition(".")[0] in ARRAY_LIBRARIES:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the conformance kit)", name=name)
        return None


def fingerprint(policy: LayoutPolicy) -> str:
    """A digest of how a policy lays out every sample; refusals count as such."""
    told = []
    for case in BLOCK_CASES:
        geometry = BlockCacheGeometry(_PAGE * case.pages_per_block, _PAGE)
        specs = case.specs(_PAGE)
        try:
            policy.check_geometry(specs, geometry)
            layout = policy.select_block_layout(specs, geometry, LayoutHints(base_alignment=BASE_ALIGNMENT))
        except CacheCoreError as error:
            told.append(f"{case.name}: {type(error).__name__}")
        else:
            told.append(f"{case.name}: {json.dumps(layout.to_json(), sort_keys=True)}")
    return blake2b("\n".join(told).encode(), digest_size=8).hexdigest()


def run_fresh(backend: str, mode: str, device: str) -> dict[str, Any] | None:
    """Ask a new interpreter with this one's ``sys.path``; None when it does not find the backend."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-m", "cachecore.testing.fresh", backend, mode, device]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {_LIMIT_S:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": f"the process ended with {done.returncode}: {done.stderr.strip()[-400:]}"}
    told: dict[str, Any] = json.loads(lines[-1])
    return None if told.get("missing") else told


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Answer one question about one backend."""
    backend, mode, device = arguments
    if mode == "policy":
        sys.meta_path.insert(0, _Blocker())
    registry = PluginRegistry()
    registry.load_entry_points()
    record = next((one for one in registry.backends if is_named(one, backend)), None)
    if record is None:
        distribution = backend.partition("@")[2]
        failed = [one.reason for one in registry.failures if one.plugin.distribution == distribution]
        return {"error": failed[0]} if failed else {"missing": True}
    try:
        if mode == "policy":
            return {"fingerprint": fingerprint(record.info.load_policy())}
        started = time.perf_counter()
        answer = record.info.probe(DeviceSpec.parse(device))
        return {"seconds": time.perf_counter() - started, "answer": answer, "context": _has_context(device)}
    except BaseException as error:  # noqa: BLE001  # a stranger's code may raise anything; it becomes the answer
        return {"error": f"{type(error).__name__}: {error}"}


def _has_context(device: str) -> bool:
    """Whether the probe left the device initialised, as far as torch can tell."""
    torch: Any = sys.modules.get("torch")
    kind = DeviceSpec.parse(device).type
    module = getattr(torch, kind, None) if torch is not None else None
    asked = getattr(module, "is_initialized", None)
    return bool(asked()) if callable(asked) and kind != "cpu" else False


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
