"""cachecore's matrix for the ``tox.ini`` of somebody else's plugin, which has one line: ``requires = cachecore-kv``.

tox loads this module wherever it is installed together with cachecore; only a project that announces a
cachecore plugin gets environments from it: ``conformance``, and one such as ``conformance-py312-torch28`` for
each supported Python and torch. Each builds the project's wheel, installs it beside that torch, and runs the
project's tests with the kit's pytest plugin. What ``[testenv]`` says goes before what stands here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

import importlib_metadata
from tox.config.loader.memory import MemoryLoader
from tox.config.sets import EnvConfigSet
from tox.config.types import Command
from tox.plugin import impl
from tox.session.state import State

__all__ = ["PYTHONS", "TORCHES", "tox_add_env_config", "tox_extend_envs"]

PYTHONS = ("py311", "py312", "py313")
"""Interpreters that are supported."""

TORCHES = ("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
"""Series of torch that are supported; ``torch28`` is the factor of 2.8."""

ENVIRONMENT = "conformance"


@impl
def tox_extend_envs() -> Iterable[str]:
    """Name the environments, where the project in the current folder announces a plugin."""
    if not _announces_a_plugin(Path.cwd()):
        return ()
    cells = (f"{ENVIRONMENT}-{python}-{factor}" for python in PYTHONS for factor in _factors())
    return (ENVIRONMENT, *cells)


@impl
def tox_add_env_config(env_conf: EnvConfigSet, state: State) -> None:
    """Fill in what ``tox.ini`` leaves open in them."""
    first, *factors = (env_conf.env_name or "").split("-")
    if first != ENVIRONMENT:
        return
    series = [f"torch=={torch}.*" for factor, torch in _factors().items() if factor in factors]
    env_conf.loaders.append(
        MemoryLoader(
            description="the built wheel and the conformance kit" + "".join(f", {line}" for line in series),
            package="wheel",
            deps="\n".join([f"cachecore-kv[testing]=={importlib_metadata.version('cachecore-kv')}", "numpy", *series]),
            pass_env=["CACHECORE_*"],
            commands=[Command(["python", "-I", "-m", "pytest", *(state.conf.pos_args(None) or ())])],
        )
    )


def _factors() -> dict[str, str]:
    return {f"torch{torch.replace('.', '')}": torch for torch in TORCHES}


def _announces_a_plugin(folder: Path) -> bool:
    """Whether the nearest project, from ``folder`` up, has an entry point for cachecore."""
    for parent in (folder, *folder.parents):
        try:
            content = (parent / "pyproject.toml").read_bytes()
        except OSError:
            continue
        try:
            project = tomllib.loads(content.decode()).get("project", {})
            return bool(project.get("entry-points", {}).get("cachecore"))
        except (ValueError, AttributeError):  # no text, no TOML, or no table where one is due
            return False  # tox, or what builds the wheel, says what is wrong with it
    return False
