"""Every hook has a test, and a page that shows its exact signature."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from cachecore import hookspecs

HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("cachecore_"))


def test_there_are_hooks():
    assert len(HOOKS) >= 3


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_signature_is_documented(root, hook):
    page = (root / "docs" / "plugins.md").read_text(encoding="utf-8")
    signature = inspect.signature(getattr(hookspecs, hook))
    plain = re.sub(r"['\"]", "", f"{hook}{signature}")

    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    assert any(f"@hookimpl\ndef {plain}:\n" in block for block in blocks), f"docs/plugins.md must show `def {plain}:`"


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_says_what_it_is_for(hook):
    assert len(inspect.getdoc(getattr(hookspecs, hook)) or "") > 40


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_has_a_test(root, hook):
    tested = [
        f"{path.name}::{node.name}"
        for path in sorted((root / "tests").glob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and hook in ast.unparse(node)
    ]

    assert tested, f"no test in tests/ implements {hook}"


def test_documented_hooks_exist(root):
    page = (root / "docs" / "plugins.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^def (cachecore_\w+)", page, re.MULTILINE)) == set(HOOKS)
