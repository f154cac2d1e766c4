"""What ``cachecore backends`` found, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachecore.cli.terminal import table
from cachecore.ranking import install_line


def listing(data: Mapping[str, Any]) -> list[str]:
    """Lines for what ``cachecore backends --json`` prints."""
    core = data["cachecore"]
    lines = [f"cachecore {core['version']} ({core['distribution']}), plugin API {core['api_version']}"]
    lines += [f"  {name}={value}" for name, value in data["environment"].items()]
    lines += [f"  note: {told}" for told in data["notes"]]
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
    types = {one["name"]: one["device_types"] for one in data["backends"]}
    for device in data["devices"]:
        lines += ["", *_device_text(device, types)]
    return lines


def _plugins(plugins: Sequence[Mapping[str, Any]]) -> list[str]:
    if not plugins:
        return [f"  none; {install_line('cachecore-cpu')} installs one for the CPU"]
    first, *rows = table(["name", "status", "from"], [[one["name"], one["status"], _origin(one)] for one in plugins])
    lines = [first]
    for one, row in zip(plugins, rows, strict=True):
        lines.append(row)
        if one["reason"]:
            lines.append(f"      {_line(one['reason'])}")
    return lines


def _device_text(device: Mapping[str, Any], types: Mapping[str, Sequence[str]]) -> list[str]:
    """A line that sums up, and the reasons: each once, and none for a backend of other devices."""
    elsewhere = [one for one in device["others"] if not _claims(types.get(one["backend"], ("*",)), device["device"])]
    why = device["why"] or ""
    reasons = [
        (f"{one['backend']} ({one['distribution']})", _line(one["reason"]))
        for one in device["others"]
        if one not in elsewhere and not _is_told(one["reason"], why)
    ]
    lines = [f"device {device['device']}: {_summary(device)}"]
    lines += [f"  not {', '.join(names)}: {reason}" for reason, names in _by_reason(reasons)]
    if elsewhere:
        lines.append(f"  for other devices: {', '.join(one['backend'] for one in elsewhere)}")
    check = device["check"]
    if check is None:
        return lines
    if check["error"]:
        return [*lines, f"  check failed: {_line(check['error'])}"]
    lines.append(f"  checked: blocks in memory {check['memory_kind']}, swapped to {check['host_memory_kind']}")
    for told, directions in _by_reason([(copy["direction"], _way(copy)) for copy in check["copies"]]):
        lines.append(f"    {', '.join(directions)} {told}")
    return lines


def _summary(device: Mapping[str, Any]) -> str:
    if device["chosen"] is not None:
        return f"{device['chosen']}, {device['why']}"
    if not device["others"]:
        return f"none, since {_line(device['error']).partition('; installed are ')[0]}"  # the tables tell those
    if device["install"] is not None:
        return f"none serves it; try {install_line(device['install'])}"
    return "none serves it"


def _is_told(reason: str, why: str) -> bool:
    """Whether the line that sums up says so already: ahead of whom the chosen one is, or that it is forced."""
    return reason.endswith(" is forced") or ("ahead of" in why and reason.startswith("priority "))


def _claims(types: Sequence[str], device: str) -> bool:
    return "*" in types or device.partition(":")[0] in types


def _way(copy: Mapping[str, Any]) -> str:
    """How blocks went one way, and why no better one: the same for all directions that went alike."""
    slow = ", the last resort, byte by byte" if copy["fallback"] else ""
    reasons = _by_reason([(name, _line(why)) for name, why in copy["passed_over"]])
    lines = [f"by {copy['record']}, path {copy['path']}{slow}"]
    return "\n".join([*lines, *(f"      not {', '.join(names)}: {why}" for why, names in reasons)])


def _by_reason(told: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Reasons in the order of the first who gave each, and all who gave it."""
    grouped: dict[str, list[str]] = {}
    for name, reason in told:
        grouped.setdefault(reason, []).append(name)
    return list(grouped.items())


def _origin(one: Mapping[str, Any]) -> str:
    return f"{one['distribution']} {one['version']}"


def _line(reason: str) -> str:
    """A reason on one line, whoever wrote it."""
    return " ".join(reason.split())
