"""What ``cachecore backends`` found, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachecore.cli.terminal import table


def listing(data: Mapping[str, Any]) -> list[str]:
    """Lines for what ``cachecore backends --json`` prints."""
    core = data["cachecore"]
    lines = [f"cachecore {core['version']} ({core['distribution']}), plugin API {core['api_version']}"]
    lines += [f"  {name}={value}" for name, value in data["environment"].items()]
    lines += ["", "plugins"]
    lines += _plugins(data["plugins"])
    lines += ["", "backends"]
    lines += table(
        ["name", "priority", "devices", "from"],
        [[one["name"], one["priority"], ", ".join(one["device_types"]), _origin(one)] for one in data["backends"]],
        right="1",
    )
    lines += ["", "block copies"]
    lines += table(
        ["name", "priority", "from"],
        [
            [
                one["name"],
                one["priority"],
                _origin(one) + ("" if one["enabled"] else ", disabled by CACHECORE_DISABLE_COPIES"),
            ]
            for one in data["block_copies"]
        ],
        right="1",
    )
    for device in data["devices"]:
        lines += ["", *_device_text(device)]
    return lines


def _plugins(plugins: Sequence[Mapping[str, Any]]) -> list[str]:
    if not plugins:
        return ["  none; `python -m pip install cachecore-cpu` installs one for the CPU"]
    first, *rows = table(["name", "status", "from"], [[one["name"], one["status"], _origin(one)] for one in plugins])
    lines = [first]
    for one, row in zip(plugins, rows, strict=True):
        lines.append(row)
        if one["reason"]:
            lines.append(f"      {_line(one['reason'])}")
    return lines


def _device_text(device: Mapping[str, Any]) -> list[str]:
    if device["chosen"] is not None:
        lines = [f"device {device['device']}: {device['chosen']}, {device['why']}"]
    elif device["install"] is not None:
        lines = [f"device {device['device']}: none serves it; try `python -m pip install {device['install']}`"]
    else:
        lines = [f"device {device['device']}: none, since {_line(device['error'])}"]
    lines += [f"  not {one['backend']} ({one['distribution']}): {_line(one['reason'])}" for one in device["others"]]
    check = device["check"]
    if check is None:
        return lines
    if check["error"]:
        return [*lines, f"  check failed: {_line(check['error'])}"]
    lines.append(f"  checked: blocks in memory {check['memory_kind']}, swapped to {check['host_memory_kind']}")
    for copy in check["copies"]:
        slow = ", the last resort, byte by byte" if copy["fallback"] else ""
        lines.append(f"    {copy['direction']} by {copy['record']}, path {copy['path']}{slow}")
        lines += [f"      not {name}: {_line(why)}" for name, why in copy["passed_over"]]
    return lines


def _origin(one: Mapping[str, Any]) -> str:
    return f"{one['distribution']} {one['version']}"


def _line(reason: str) -> str:
    """A reason on one line, whoever wrote it."""
    return " ".join(reason.split())
