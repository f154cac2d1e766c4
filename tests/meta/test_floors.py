"""Every module of the core stands on a floor, and imports only from below."""

from __future__ import annotations

import ast
from collections.abc import Iterator

FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("asking", "blocks", "device", "dtypes", "meaning", "stranger", "nbytes", "paging"),
    ("local_ranks", "payload", "solving"),
    ("holding", "schema"),
    ("layout_proof", "tier"),
    ("layout",),
    ("layout_kinds", "occupancy"),
    ("policy",),
    ("group_plan",),
    ("collect", "kv", "plan", "state_plan"),
    ("plan_set",),
    ("backend", "budget", "explain", "picture"),
    ("copying",),
    ("hookspecs", "probing", "ranking", "sizing", "view"),
    ("choosing", "report"),
    ("agreement",),
    ("transfer",),
    ("reference",),
    ("answers", "in_flight", "registry", "stats"),
    ("group_memory",),
    ("engine_group",),
    ("opening", "ring_copies", "sleeping"),
    ("engine_core",),
    ("state",),
    ("engine", "speculation"),
    ("build",),
    ("testing",),
    ("__init__",),  # `cachecore` itself: the public names
    ("cli",),
    ("__main__",),
)
"""Lowest first. DESIGN's floors 0 to 9, each split into the steps in which its modules build on one another."""

FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}


def floor_of(module: str) -> int | None:
    """The floor of a module, or of the package that it is in."""
    return FLOOR.get(module.partition(".")[0])


def imports_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Core modules that ``tree`` imports when it runs, with the line; ``TYPE_CHECKING`` blocks are exempt."""
    exempt = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in exempt:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "cachecore":
                    yield alias.name.partition(".")[2], node.lineno
        elif isinstance(node, ast.ImportFrom):
            if node.module == "cachecore":
                for alias in node.names:
                    yield alias.name, node.lineno
            elif node.module and node.module.startswith("cachecore."):
                yield node.module.removeprefix("cachecore."), node.lineno


def test_every_module_has_a_floor(modules):
    homeless = [name for name in modules if floor_of(name) is None]

    assert not homeless, f"add {homeless} to FLOORS: where do they stand?"


def test_imports_go_down(modules):
    wrong = []
    for name, tree in modules.items():
        own, package = floor_of(name), name.partition(".")[0]
        for imported, line in imports_of(tree):
            # `from cachecore import name` is a module of that name, or a public name of the package itself.
            target = imported if imported in modules else imported.rpartition(".")[0] or ""
            if target.partition(".")[0] == package:
                continue  # inside one package, such as `testing`
            floor = floor_of(target if target in modules else "__init__")
            if own is None or floor is None or floor >= own:
                wrong.append(f"cachecore/{name.replace('.', '/')}.py:{line} (floor {own}) imports {target!r} ({floor})")

    assert not wrong, "\n".join(wrong)


def test_no_relative_imports(modules):
    relative = [
        f"{name}:{node.lineno}"
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]

    assert not relative


def test_pluggy_has_two_users(modules):
    users = {
        name
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(alias.name.startswith("pluggy") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pluggy"))
    }

    assert users == {"hookspecs", "registry"}


def test_no_asserts_in_the_pipeline(modules):
    asserts = [
        f"{name}:{node.lineno}"
        for name, tree in modules.items()
        if not name.startswith("testing")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]

    assert not asserts, "an assert vanishes under -O; raise an error a caller can catch"
