"""Compiles the C++ device, once for each torch and source, into a cache folder."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

__all__ = ["built_library", "compiler_reason", "library_path"]

_SOURCES = Path(__file__).parent / "native"
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-pthread")


def _compiler() -> str:
    return os.environ.get("CXX", "g++")


def compiler_reason() -> str | None:
    """None when there is a compiler, else the reason why nothing can be built."""
    if shutil.which(shlex.split(_compiler())[0]) is None:
        return f"there is no C++ compiler {_compiler()!r}; install one, or name it in CXX"
    return None


def library_path() -> Path:
    """Where the shared library is once it is built.

    It links torch alone, so it serves every Python; but one torch release.
    """
    source = b"".join(path.read_bytes() for path in sorted(_SOURCES.iterdir()))
    key = hashlib.sha256(repr((torch.__version__, _compile_flags())).encode() + source).hexdigest()[:16]
    return _cache_folder() / f"npu_sim_{key}.so"


def built_library() -> Path:
    """The shared library, compiled if need be (about 15 s, 1 GB of memory).

    Raises
    ------
    RuntimeError
        When there is no compiler, or the compiler refuses.
    """
    library = library_path()
    if library.exists():
        return library
    if (reason := compiler_reason()) is not None:
        raise RuntimeError(reason)
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [
            *shlex.split(_compiler()),
            *_compile_flags(),
            str(_SOURCES / "npu_sim.cpp"),
            "-o",
            str(made),
            *_link_flags(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the simulated device did not compile with torch {torch.__version__}:\n{done.stderr}")
        made.replace(library)  # whole or not at all, whoever else is building
    return library


def _compile_flags() -> tuple[str, ...]:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    headers = Path(torch.__file__).parent / "include"  # as torch.utils.cpp_extension has it, which needs setuptools
    return (*_FLAGS, abi, f"-isystem{headers}", f"-isystem{headers / 'torch/csrc/api/include'}")


def _link_flags() -> list[str]:
    folder = Path(torch.__file__).parent / "lib"
    return [f"-L{folder}", "-lc10", "-ltorch_cpu"]


def _cache_folder() -> Path:
    if named := os.environ.get("CACHECORE_NPU_SIM_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cachecore-npu-sim"
