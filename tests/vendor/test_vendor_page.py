"""``docs/writing-a-plugin.md`` is followed to the letter: commands run, files are written, output is compared."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "writing-a-plugin.md"
FENCE = re.compile(r"^```\{code-block\} (\w+)\n(?::caption: (\S+)\n\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
END = "@@ended@@"


class Block(NamedTuple):
    """One fenced block: its language, the file that its caption names, its line in the page, its text."""

    kind: str
    file: str
    line: int
    text: str


def blocks_of(text: str) -> list[Block]:
    return [
        Block(match[1], match[2] or "", text.count("\n", 0, match.start()) + 1, match[3])
        for match in FENCE.finditer(text)
    ]


class Shell:
    """One shell for the whole page, so that an activated environment and exported variables stay."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._errors = folder.parent / "stderr.txt"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, command: str) -> tuple[int, str, str]:
        """Exit code, output and errors of one command."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{{ {command}\n}} 2>'{self._errors}' </dev/null; echo \"\n{END} $?\"\n")
        stdin.flush()
        lines: list[str] = []
        while not (line := stdout.readline()).startswith(END):
            assert line, f"the shell ended in {command}: {self._errors.read_text()}"
            lines.append(line)
        return int(line.split()[1]), "".join(lines)[:-1], self._errors.read_text()

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture
def shell(lent, tmp_path) -> Iterator[Shell]:
    folder = tmp_path / "empty"
    folder.mkdir()
    opened = Shell(folder, lent | {"CHECKOUT": str(ROOT)})
    yield opened
    opened.close()


def follow_console(shell: Shell, block: Block) -> None:
    """Run each ``$`` line; a command that shows a FAIL exits with 1, every other one with 0."""
    if ":native" in block.text and shutil.which(os.environ.get("CXX", "g++").split()[0]) is None:
        return  # the page says that this step needs a compiler
    for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = session.partition("\n")
        code, printed, errors = shell.run(command)
        where = f"{PAGE.name}:{block.line}: {command}"
        assert code == int(re.search(r"^FAIL(ED)? ", shown, re.MULTILINE) is not None), (
            f"{where} exits with {code}\n{printed}{errors}"
        )
        if shown:
            told = re.sub(r"^\.\.\.\n", "...", shown, flags=re.MULTILINE)  # a line of dots may stand for nothing
            matches = doctest.OutputChecker().check_output(told, printed, doctest.ELLIPSIS)
            assert matches, f"{where} printed\n{printed}{errors}\nbut the page shows\n{shown}"


def applied(text: str, diff: str) -> str:
    """What a person makes of a short diff: the lines that go are found once, and replaced."""
    lines = diff.removesuffix("\n").split("\n")
    old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", "-"))
    new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in (" ", "+"))
    assert text.count(old) == 1, f"these lines stand {text.count(old)} times in the file:\n{old}"
    return text.replace(old, new)


@pytest.mark.timeout(900)
def test_page_works_to_the_letter(shell, tmp_path):
    blocks = blocks_of(PAGE.read_text(encoding="utf-8"))

    for block in blocks:
        file = tmp_path / "empty" / block.file
        if block.kind == "console":
            follow_console(shell, block)
        elif block.kind == "diff":
            file.write_text(applied(file.read_text(encoding="utf-8"), block.text), encoding="utf-8")
        else:
            assert file.is_file(), f"{PAGE.name}:{block.line}: new-backend did not write {block.file}"
            file.write_text(block.text, encoding="utf-8")

    assert [kind for kind, *_ in blocks].count("console") >= 8


def test_page_has_no_other_blocks():
    text = PAGE.read_text(encoding="utf-8")

    assert len(re.findall(r"^```.", text, re.MULTILINE)) == len(blocks_of(text))
