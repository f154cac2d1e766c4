"""A plugin stands on public names only, so that a stranger's can do all that ours do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for path in ROOT.glob("plugins/*/src/*/**/*.py"))


def package_folder(name: str) -> Path | None:
    """Where ``cachecore`` or one of our plugins' packages stands in the repository."""
    folders = [ROOT / name] if name == "cachecore" else sorted(ROOT.glob(f"plugins/*/src/{name}"))
    return folders[0] if folders else None


def public_names(package: Path, module: str) -> set[str]:
    """``__all__`` of a module, or what it defines without a leading underscore; its submodules where a package."""
    path = package.joinpath(*module.split(".")) if module else package
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            names = set(ast.literal_eval(node.value))
            break
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    if path.is_dir():
        names |= {one.stem for one in path.glob("*.py")}
    return {name for name in names if not name.startswith("_")}


def foreign_imports(path: Path) -> list[tuple[str, str, int]]:
    """``(module, name, line)`` of everything taken from the core or from another plugin of ours."""
    own = path.relative_to(ROOT).parts[3]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [(node.module, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "", node.lineno) for alias in node.names]
    return [one for one in found if (top := one[0].partition(".")[0]) != own and (top + "_").startswith("cachecore_")]


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT / "plugins")) for path in SOURCES])
def test_plugin_imports_public_names_only(path):
    wrong = []
    for module, name, line in foreign_imports(path):
        top, _, rest = module.partition(".")
        package = package_folder(top)
        if package is None:
            continue  # a plugin of somebody else
        if any(part.startswith("_") for part in [*rest.split("."), name]):
            wrong.append(f"line {line}: {module}.{name} is private")
        elif name and name not in public_names(package, rest):
            wrong.append(f"line {line}: {module} does not export {name!r}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", SOURCES, ids=[str(path.relative_to(ROOT / "plugins")) for path in SOURCES])
def test_plugin_patches_nothing(path):
    """No attribute of an imported module is assigned to: a vanished target would never be noticed."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    patched = [
        f"line {node.lineno}: {ast.unparse(target)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and ast.unparse(target).partition(".")[0] in imported
    ]

    assert not patched
