"""``cachecore new-backend``: a distribution of a plugin that works, with the places to override marked."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

from cachecore.cli.options import add_json, device_name
from cachecore.cli.terminal import CommandError, print_json
from cachecore.device import DeviceSpec

__all__ = ["add_command"]

_DESCRIPTION = """\
Write a new distribution, cachecore-NAME: a backend on top of cachecore-torch-default with a layout policy
and a block copy of its own, its tests, and its packaging. It works as it stands; the places to override
are marked.
"""

_EPILOG = """\
NAME becomes the backend's name, as in `cachecore check NAME`. The folder must not be there, or be empty.

examples:
  cachecore new-backend mine                           for the CPU, where every level of the kit runs at once
  cachecore new-backend mine --device-type npu         for the device type that the vendor's torch has
  cachecore new-backend my-chip --device-type npu --directory ~/src/my-chip

then, with cachecore-torch-default installed (in a checkout of cachecore, as nothing is on PyPI yet:
python -m pip install . ./plugins/torch-default):
  python -m pip install -e "./cachecore-mine[testing]"
  cachecore backends --device npu                      why it serves, or why not
  cachecore check mine --level discovery --level layout --level golden
  cachecore check mine --device npu --report mine.json
"""

_SERIES, _COMPATIBLE = ">=0.1,<0.2", "~=0.1.0"
"""Releases of the core and of torch-default that the new plugin is written for; the second has no comma."""

_LONGEST_NAME = 40
_UNQUOTABLE = re.compile(r'["$`\\!\n]')
"""What means something to a shell between double quotes."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TAKEN = frozenset(
    {"ascend", "ascend-dlinfer", "bytes", "camb", "cpu", "cuda-triton", "kv", "maca", "npu-sim", "ray", "torch-default"}
    | {"mooncake", "nixl", "models", "operators", "transformers"}
)
"""Backends and distributions of the cachecore project itself."""

_OF_TORCH = frozenset({"cpu", "cuda", "hip", "hpu", "ipu", "maia", "meta", "mps", "mtia", "vulkan", "xla", "xpu"})
"""Device types that torch itself has. Any other is its spare type renamed, which can be simulated."""

_FILES = MappingProxyType(
    {
        ".gitignore": ("gitignore.txt", ""),
        "LICENSE": ("LICENSE.txt", ""),
        "README.md": ("README.md.txt", ""),
        "pyproject.toml": ("pyproject.toml.txt", "the entry point that makes it found"),
        "src/$package/__init__.py": ("init.py.txt", ""),
        "src/$package/backend.py": ("backend.py.txt", "memory, and what the device cannot do"),
        "src/$package/block_copy.py": ("block_copy.py.txt", "how blocks are copied"),
        "src/$package/plugin.py": ("plugin.py.txt", "what is announced, and when it serves"),
        "src/$package/policy.py": ("policy.py.txt", "the layout"),
        "src/$package/py.typed": (None, ""),
        "tests/test_conformance.py": ("test_conformance.py.txt", "the conformance kit as tests"),
        "tests/test_plan.py": ("test_plan.py.txt", ""),
        "tox.ini": ("tox.ini.txt", "cachecore's matrix of Python and torch releases"),
    }
)
"""Path in the distribution: its template, and what it is for where that is worth a line."""


def add_command(commands: Any, style: dict[str, Any]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "new-backend",
        help="write a new plugin that works, to be changed",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        **style,
    )
    parser.add_argument(
        "name", metavar="NAME", type=_name, help="lowercase letters, digits and dashes, such as my-chip"
    )
    parser.add_argument(
        "--device-type", default="cpu", type=_device_type, metavar="TYPE", help="what it serves (default: cpu)"
    )
    parser.add_argument(
        "--directory", type=_directory, metavar="DIR", help="folder to write (default: ./cachecore-NAME)"
    )
    add_json(parser)
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Write all files or none."""
    name: str = options.name
    distribution = f"cachecore-{name}"
    package = distribution.replace("-", "_")
    words = {
        "name": name,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "distribution": distribution,
        "package": package,
        "device_type": options.device_type,
        "series": _SERIES,
        "compatible": _COMPATIBLE,
    }
    words |= _simulation(words)
    target = Path(distribution) if options.directory is None else options.directory
    written = _write(target, _texts(words))
    if options.json:
        told = {key: words[key] for key in ("name", "distribution", "package", "device_type")}
        print_json({**told, "directory": str(target), "files": written})
    else:
        print("\n".join(_told(target, words)))
    return 0


def _simulation(words: dict[str, str]) -> dict[str, str]:
    """The parts of files about a simulated device; empty where the type cannot be simulated."""
    names = ("sim_extra", "sim_readme", "sim_tox")
    if words["device_type"] in _OF_TORCH:
        return dict.fromkeys(names, "")
    templates = files("cachecore.cli") / "scaffold"
    texts = {name: (templates / f"{name}.txt").read_text(encoding="utf-8") for name in names}
    return {name: Template(text).substitute(words) for name, text in texts.items()}


def _texts(words: dict[str, str]) -> dict[str, str]:
    """Every file's text, by its path in the distribution."""
    templates = files("cachecore.cli") / "scaffold"
    texts = {}
    for path, (template, _) in _FILES.items():
        text = "" if template is None else (templates / template).read_text(encoding="utf-8")
        texts[Template(path).substitute(words)] = text if path == "LICENSE" else Template(text).substitute(words)
    return texts


def _write(target: Path, texts: dict[str, str]) -> list[str]:
    """Write into a folder beside ``target`` and move it there when it is complete; nothing stays of a failure."""
    _check_free(target)
    try:
        aside = Path(tempfile.mkdtemp(prefix=".cachecore-", dir=target.parent))
        try:
            made = aside / target.name
            for path, text in texts.items():
                file = made / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            _move(made, target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:  # it names a folder that is gone
        raise CommandError(
            f"{target} cannot be written: {error.strerror or error}; name another folder with --directory"
        ) from error
    return sorted(texts)


def _check_free(target: Path) -> None:
    if target.is_dir():
        if any(target.iterdir()):
            raise CommandError(
                f"{target} is there and not empty, and nothing is overwritten; name another folder with --directory, "
                "or remove it first"
            )
    elif target.exists() or target.is_symlink():
        raise CommandError(f"{target} is there and no folder; name another one with --directory")
    elif not target.parent.is_dir():
        raise CommandError(f"{target.parent} is no folder to write {target.name!r} into; make it first")


def _move(made: Path, target: Path) -> None:
    """Rename at once; an empty folder that is there, the current one perhaps, gets the contents one by one."""
    if not target.exists():
        made.rename(target)
        return
    moved: list[Path] = []
    try:
        for child in sorted(made.iterdir()):
            moved.append(target / child.name)
            child.rename(moved[-1])
    except BaseException:
        for path in moved:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        raise


def _told(target: Path, words: dict[str, str]) -> list[str]:
    name, device = words["name"], words["device_type"]
    about = {Template(path).substitute(words): text for path, (_, text) in _FILES.items() if text}
    width = max(map(len, about))
    simulated = (
        f"  CACHECORE_NPU_SIM={device} cachecore check {name} --device {device}  # anywhere, with ./plugins/npu-sim"
    )
    return [
        f"wrote {target}: backend {name} for device type {device}, {len(_FILES)} files",
        *(f"  {path:<{width}}  {text}" for path, text in about.items()),
        "next:",
        "  # cachecore-torch-default must be installed; in a checkout of cachecore, as nothing is on PyPI yet:",
        "  # python -m pip install . ./plugins/torch-default",
        f"  python -m pip install -e {_as_argument(target)}",
        f"  cachecore check {name} --level discovery --level layout --level golden",
        f"  cachecore check {name} --device {device} --report {name}.json",
        *([] if device in _OF_TORCH else [simulated]),
    ]


def _as_argument(target: Path) -> str:
    """A path that pip does not take for a distribution's name, with the extra, as a shell reads it."""
    text = f"{target if target.is_absolute() else f'./{target}'}[testing]"
    return shlex.quote(text) if _UNQUOTABLE.search(text) else f'"{text}"'


def _directory(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error} Name a folder without ~") from error


def _name(text: str) -> str:
    if not _NAME.fullmatch(text) or len(text) > _LONGEST_NAME:
        hint = re.sub("[^a-z0-9]+", "-", text.lower()).strip("-0123456789")[:_LONGEST_NAME].strip("-")
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of a backend; expected lowercase letters, digits and single dashes, a letter first, "
            f"at most {_LONGEST_NAME}" + (f", such as {hint}" if _NAME.fullmatch(hint) else "")
        )
    if text.startswith("cachecore-"):
        raise argparse.ArgumentTypeError(
            f"{text!r} would become distribution 'cachecore-{text}'; say {text.removeprefix('cachecore-')}"
        )
    if text in _TAKEN:
        raise argparse.ArgumentTypeError(f"{text!r} is taken by cachecore itself; choose another, such as my-{text}")
    return text


def _device_type(text: str) -> str:
    device = DeviceSpec.parse(device_name(text))
    if device.index is not None:
        raise argparse.ArgumentTypeError(f"{text!r} is one device; expected a type, such as {device.type}")
    if device.type == "null":
        raise argparse.ArgumentTypeError("'null' is the core's own device without an array library; name a torch one")
    return device.type
