"""Every Python block of the READMEs and the docs runs, in order, page by page.

A page is one namespace. A block fenced as ``python torch`` needs torch and the torch plugins and runs where they are
installed, as every block of a plugin's README runs where the plugin is; a block fenced as ``text output`` is what the
blocks before it have printed, to the letter. In a ``console`` block ``$ cachecore ...`` lines run, and print what
follows them, where ``...`` stands for anything.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import sys
import types
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

import pytest

from cachecore.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLUGIN_PAGES = sorted(ROOT.glob("plugins/*/README.md"))
FENCE = re.compile(
    r"^(?P<fence>```+)(?P<info>(?:python|text output|console)[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
NEEDED = ("torch", "cachecore-torch-default", "cachecore-cpu")


class Block(NamedTuple):
    """One fenced block: what follows the backticks, its first line in the page, its text."""

    info: str
    line: int
    text: str

    @property
    def needs_torch(self) -> bool:
        return "torch" in self.info.split()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["info"], text.count("\n", 0, match.start("body")), match["body"]) for match in FENCE.finditer(text)
    ]


def without_torch(blocks: list[Block]) -> list[Block]:
    """Leave out the blocks that need torch, and what they print."""
    kept: list[Block] = []
    skipped = False
    for block in blocks:
        if block.info != "text output":
            skipped = block.needs_torch
        if not skipped:
            kept.append(block)
    return kept


def run_page(page: Path, blocks: list[Block]) -> None:
    module = types.ModuleType("docs_page")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    printed = io.StringIO()
    try:
        for block in blocks:
            if block.info == "text output":
                assert printed.getvalue().rstrip() == block.text.rstrip(), (
                    f"{page.name}:{block.line} shows other output"
                )
                printed = io.StringIO()
                continue
            if block.info == "console":
                run_console(page, block)
                continue
            code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(printed):
                exec(code, vars(module))
    finally:
        del sys.modules[module.__name__]


def run_console(page: Path, block: Block) -> None:
    checker = doctest.OutputChecker()
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        shown = re.sub(r"\n\.\.\.\n$", "...", shown)  # a last line of dots may stand for nothing
        program, *arguments = shlex.split(command)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = main(arguments)
        assert (program, code) == ("cachecore", 0), f"{page.name}:{block.line}: {command} exits with {code}"
        assert checker.check_output(shown, printed.getvalue(), doctest.ELLIPSIS), (
            f"{command} printed\n{printed.getvalue()}"
        )


def skip_without(*names: str) -> None:
    for name in names:
        try:
            distribution(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed; the plugins' tox environments run this page")


def pages_with(*, torch: bool) -> list[object]:
    return [
        pytest.param(page, id=page.relative_to(ROOT).as_posix())
        for page in PAGES
        if (blocks := blocks_of(page)) and any(block.needs_torch == torch for block in blocks)
    ]


@pytest.mark.parametrize("page", pages_with(torch=False))
def test_page_runs_without_torch(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    run_page(page, without_torch(blocks_of(page)))


@pytest.mark.parametrize("page", pages_with(torch=True))
def test_page_runs_with_torch(page, tmp_path, monkeypatch):
    skip_without(*NEEDED)
    monkeypatch.chdir(tmp_path)

    run_page(page, blocks_of(page))


@pytest.mark.parametrize("page", PLUGIN_PAGES, ids=lambda page: page.parent.name)
def test_plugin_page_runs(page, tmp_path, monkeypatch):
    skip_without(*NEEDED, f"cachecore-{page.parent.name}")
    monkeypatch.chdir(tmp_path)

    run_page(page, blocks_of(page))


def test_there_are_pages_to_run():
    assert len(pages_with(torch=False)) >= 8
