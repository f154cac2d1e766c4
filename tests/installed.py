"""Plugins as an installer leaves them: a module and a dist-info in a folder on ``sys.path``."""

from __future__ import annotations

import textwrap
from pathlib import Path

BROKEN = Path(__file__).parent / "broken_plugins"

GOOD = """
    from cachecore import BackendInfo, BlockCopyInfo, ByteBackend, StandardLayoutPolicy, hookimpl

    @hookimpl
    def cachecore_register_backends():
        probe = lambda device: {reason!r}
        return [BackendInfo({name!r}, ("null",), {priority}, probe, StandardLayoutPolicy, ByteBackend)]

    @hookimpl
    def cachecore_register_block_copies():
        return [BlockCopyInfo({name!r}, {priority}, lambda src, dst: None, lambda context: None)]
"""


def install(folder: Path, name: str, source: str, *, entry: str | None = None, version: str = "1.0") -> Path:
    """Write plugin module ``name`` and its dist-info into ``folder``; return the folder for ``sys.path``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(f"[cachecore]\n{entry or name} = {name}\n", encoding="utf-8")
    return folder


def install_good(folder: Path, name: str, *, priority: int = 30, reason: str | None = None, **more: str) -> Path:
    """A plugin with one backend for the null device and one block copy, both of its name."""
    return install(folder, name, GOOD.format(name=name, priority=priority, reason=reason), **more)
