"""The core and every policy load where no array library is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy", "triton", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r} (blocked by the test)", name=name)

sys.meta_path.insert(0, Blocker())
"""


def backend_plugins() -> list[tuple[str, str]]:
    """``(source folder, entry-point module)`` of every plugin of this repository."""
    found = []
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        entries = project.get("entry-points", {}).get("cachecore", {})
        found += [(str(path.parent / "src"), module) for module in entries.values()]
    return found


def run(code: str, *paths: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-P", "-c", BLOCK + code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_cachecore_loads_no_array_library_and_no_plugin():
    loaded = run("import cachecore; print(*sorted({name.partition('.')[0] for name in sys.modules}))").split()

    assert not {"torch", "numpy", "triton", "transformers"} & set(loaded)
    assert not [name for name in loaded if name.startswith("cachecore_")]


def test_import_cachecore_reads_no_entry_points():
    run(
        "import importlib_metadata\n"
        "def refuse(**_): raise AssertionError('entry points were read at import')\n"
        "importlib_metadata.entry_points = refuse\n"
        "import cachecore\n"
    )


def test_every_core_module_imports_without_an_array_library():
    run(
        "import cachecore, importlib, pkgutil\n"
        "for module in pkgutil.walk_packages(cachecore.__path__, 'cachecore.'):\n"
        "    if not module.name.endswith('__main__') and 'testing' not in module.name:\n"
        "        importlib.import_module(module.name)\n"
    )


@pytest.mark.parametrize(("source", "module"), backend_plugins(), ids=[module for _, module in backend_plugins()])
def test_a_plugin_announces_and_loads_its_policy_without_an_array_library(source, module):
    sources = sorted({folder for folder, _ in backend_plugins()} - {source})

    names = run(
        f"import importlib, cachecore\n"
        f"plugin = importlib.import_module({module!r})\n"
        "announce = getattr(plugin, 'cachecore_register_backends', tuple)\n"
        "copies = getattr(plugin, 'cachecore_register_block_copies', tuple)\n"
        "for info in announce():\n"
        "    policy = info.load_policy()\n"
        "    assert isinstance(policy, cachecore.LayoutPolicy), policy\n"
        "    print(info.name, policy.name)\n"
        "for info in copies():\n"
        "    print(info.name)\n",
        source,
        *sources,
    )

    assert names.strip(), f"{module} announces nothing"
