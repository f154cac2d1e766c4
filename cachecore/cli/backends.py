"""``cachecore backends``: what is installed, what serves which device, and why the rest does not."""

from __future__ import annotations

import argparse
from typing import Any

from cachecore.asking import told
from cachecore.backend import API_VERSION
from cachecore.build import build_block_cache_plan, open_engine
from cachecore.cli.listing import listing
from cachecore.cli.naming import VARIABLES, unmatched_names
from cachecore.cli.options import add_json, device_name
from cachecore.cli.terminal import (
    DISTRIBUTION,
    CommandError,
    core_version,
    print_json,
    progress,
    show,
    warn,
)
from cachecore.device import DeviceSpec
from cachecore.errors import CacheCoreError, NoBackendError
from cachecore.kv import KvCacheConfig
from cachecore.ranking import PluginFailure, PluginRecord
from cachecore.registry import PluginRegistry
from cachecore.schema import BlockCacheGeometry
from cachecore.stranger import stranger_distribution

_DESCRIPTION = """\
Show every plugin that was found, every backend and block copy it brings, which backend serves a
device, and for each other one the reason why it does not.
"""

_EPILOG = """\
Without --device, every device type that a backend names is shown, and cpu.

examples:
  cachecore backends                       everything that is installed
  cachecore backends --device cuda:0       exit code 1 when nothing serves it
  cachecore backends --device cpu --check  open a small engine there, move a block, say which way it went

environment:
  CACHECORE_BACKEND          force a backend: name, or name@distribution
  CACHECORE_PLUGINS          load these plugins only (comma-separated)
  CACHECORE_DISABLE_PLUGINS  never load these plugins
  CACHECORE_DISABLE_COPIES   never use these block copies
"""


def add_command(commands: Any, style: dict[str, Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "backends",
        help="show plugins, and which backend serves which device",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        **style,
    )
    parser.add_argument(
        "--device", action="append", type=device_name, metavar="DEVICE", help="a device; may be given several times"
    )
    parser.add_argument(
        "--check", action="store_true", help="open a small engine on each served device and move blocks"
    )
    add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Load every plugin, ask every backend, print what was found."""
    registry = PluginRegistry()
    progress("loading plugins")
    registry.load_entry_points()
    data = _data(registry)
    for device in options.device or _claimed(registry):
        progress(f"asking the backends about {device}")
        data["devices"].append(_device(registry, device, check=options.check))
    stranger = data["stranger"]
    if stranger is not None:
        warn(stranger["advice"])
    if options.json:
        print_json(data)
    else:
        show("\n".join(listing(data)))
    for device in data["devices"]:
        if options.device and device["chosen"] is None:
            raise CommandError(f"no backend serves {device['device']}; the report says why")
        if device["check"] is not None and device["check"]["error"] is not None:
            raise CommandError(f"the check on {device['device']} failed: {device['check']['error']}")
    return 0


def _claimed(registry: PluginRegistry) -> list[str]:
    """Every device type that a backend names: cpu first, the null device last."""
    types = {kind for record in registry.backends for kind in record.info.device_types} - {"*"}
    return sorted(types | {"cpu"}, key=lambda kind: (kind != "cpu", kind == "null", kind))


def _data(registry: PluginRegistry) -> dict[str, Any]:
    enabled = {info.name for info in registry.copy_infos()}
    return {
        "cachecore": {"version": core_version(), "distribution": DISTRIBUTION, "api_version": API_VERSION},
        "stranger": stranger_distribution(),
        "environment": {name: registry.environ[name] for name in VARIABLES if registry.environ.get(name, "").strip()},
        "notes": unmatched_names(registry),
        "plugins": [
            *(_plugin(record, "loaded", None) for record in registry.plugins),
            *(_unused(failure, "failed") for failure in registry.failures),
            *(_unused(failure, "skipped") for failure in registry.skipped),
        ],
        "backends": [
            {
                "name": record.info.name,
                "priority": record.info.priority,
                "device_types": list(record.info.device_types),
                "api_version": record.info.api_version,
                "distribution": record.plugin.distribution,
                "version": record.plugin.version,
            }
            for record in sorted(registry.backends, key=lambda one: (-one.info.priority, one.info.name))
        ],
        "block_copies": [
            {
                "name": copy.info.name,
                "priority": copy.info.priority,
                "enabled": copy.info.name in enabled,
                "distribution": copy.plugin.distribution,
                "version": copy.plugin.version,
            }
            for copy in sorted(registry.copies, key=lambda one: (-one.info.priority, one.info.name))
        ],
        "devices": [],
    }


def _plugin(record: PluginRecord, status: str, reason: str | None) -> dict[str, Any]:
    return {
        "name": record.name,
        "distribution": record.distribution,
        "version": record.version,
        "status": status,
        "reason": reason,
    }


def _unused(failure: PluginFailure, status: str) -> dict[str, Any]:
    return _plugin(failure.plugin, status, failure.reason)


def _device(registry: PluginRegistry, device: str, *, check: bool) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(("device", "chosen", "why", "error", "install", "others", "check"))
    found |= {"device": device, "others": []}
    try:
        selection = registry.select(DeviceSpec.parse(device))
    except NoBackendError as error:
        found["error"] = str(error)
        line = getattr(error, "install", None)
        if line not in {record.plugin.distribution for record in registry.backends}:
            found["install"] = line
        names = {record.info.name for record in registry.backends}
        others = map(_split, getattr(error, "reasons", ()))
        found["others"] = [other for other in others if other["backend"] in names]  # plugins that failed are told above
        return found
    except CacheCoreError as error:
        found["error"] = str(error)
        return found
    found["chosen"] = selection.chosen.info.name
    found["why"] = selection.reason
    found["others"] = [
        {"backend": record.info.name, "distribution": record.plugin.distribution, "reason": reason}
        for record, reason in selection.rejected
    ]
    if check:
        progress(f"opening an engine on {device}")
        found["check"] = _check(
            registry, device, f"{selection.chosen.info.name}@{selection.chosen.plugin.distribution}"
        )
    return found


def _split(reason: str) -> dict[str, str]:
    """``name (distribution): reason`` as a registry's error has it."""
    who, _, why = reason.partition("): ")
    name, _, distribution = who.partition(" (")
    return {"backend": name, "distribution": distribution, "reason": why}


def _check(registry: PluginRegistry, device: str, backend: str) -> dict[str, Any]:
    """Open a small engine, copy a block, swap one out and in; say which way each went."""
    try:
        plans = build_block_cache_plan(
            kv=KvCacheConfig(layers=2, num_kv_heads=2, head_dim=16, dtype="float16"),
            geometry=BlockCacheGeometry(32, 16),
            device=device,
            backend=backend,
            registry=registry,
        )
        with open_engine(plans, 4, host_counts=2, backend=backend, registry=registry) as engine:
            engine.copy_blocks({0: 1}).synchronize()
            engine.swap_out({1: 0}).synchronize()
            engine.swap_in({0: 2}).synchronize()
            group = engine.stats().to_json()["groups"][0]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # a plugin may raise anything; it becomes the answer of the check
        return {"error": told(error), "copies": []}
    return {
        "error": None,
        "memory_kind": group["memory_kind"],
        "host_memory_kind": group["host_memory_kind"],
        "copies": [
            {key: copy[key] for key in ("direction", "record", "path", "fallback", "passed_over")}
            for copy in group["copies"]
        ],
    }
