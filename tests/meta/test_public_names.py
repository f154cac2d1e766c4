"""The public names are a promise: adding or removing one is a decision, made in ``public_names.txt``."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import cachecore

PINNED = Path(__file__).with_name("public_names.txt")


def test_public_names_are_pinned():
    pinned = PINNED.read_text(encoding="utf-8").split()
    present = sorted(cachecore.__all__)

    added, removed = sorted(set(present) - set(pinned)), sorted(set(pinned) - set(present))
    assert pinned == present, f"write the decision into {PINNED.name}: added {added}, removed {removed}"


def test_every_public_name_is_there_and_documented():
    bare = [
        name
        for name in cachecore.__all__
        if (inspect.isclass(value := getattr(cachecore, name)) or inspect.isroutine(value)) and not value.__doc__
    ]

    assert not bare


def test_import_star_gives_the_public_names():
    namespace: dict[str, object] = {}
    exec("from cachecore import *", namespace)

    assert set(cachecore.__all__) <= set(namespace)


def test_modules_export_what_they_define(modules):
    wrong = []
    for name, tree in modules.items():
        exported = exported_names(tree)
        if exported is None or not name or name == "__init__":
            continue
        bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        bound |= {
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        bound |= {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if name.count(".") == 0 and name == "testing"
        }
        wrong += [f"{name}.{missing}" for missing in sorted(set(exported) - bound)]
        wrong += [f"{name}.{private}" for private in exported if private.startswith("_")]

    assert not wrong


def exported_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    return None
