"""What holds for the repository as a whole."""

from __future__ import annotations

import re
import tomllib

import pytest

from cachecore import errors

# Written in pieces, so that this file does not name what it forbids.
MACHINE_PATHS = re.compile(
    "|".join(
        [
            r"(?<![\w.}/-])/(?:root|work|Users|home)/" + r"\w",
            r"\.\./" + "shared",
            r"\." + "library/",
            r"[A-Z]:\\" + r"Users",
            "/opt/" + "(?:wheels|pypi)",
        ]
    )
)


def test_no_file_names_a_machine(root, kept_files):
    named = []
    for path in kept_files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture
        named += [
            f"{path.relative_to(root)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if MACHINE_PATHS.search(line)
        ]

    assert not named, "\n".join(named)


def test_every_module_has_its_test(root, modules):
    expected = {name.partition(".")[0] for name in modules} - {"__init__", "", "__main__"}
    missing = sorted(name for name in expected if not (root / "tests" / f"test_{name}.py").is_file())

    assert not missing, f"tests/ mirrors cachecore/; missing: {', '.join(f'test_{name}.py' for name in missing)}"


def error_classes() -> list[type[errors.CacheCoreError]]:
    return [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.CacheCoreError)
    ]


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_errors_page_lists_the_class(root, error):
    page = (root / "docs" / "errors.md").read_text(encoding="utf-8")
    builtin = next(base for base in error.__mro__ if base.__module__ == "builtins")

    assert re.search(rf"^\| `{error.__name__}` \| `{builtin.__name__}` \|", page, re.MULTILINE)


@pytest.mark.parametrize("error", error_classes(), ids=lambda error: error.__name__)
def test_error_is_also_a_builtin_that_a_caller_would_catch(error):
    builtins = [base for base in error.__mro__ if base.__module__ == "builtins"]

    assert error is errors.CacheCoreError or builtins[0] is not Exception


def test_versions_agree(root):
    """A release of the core and the plugins' requirement of it must fit each other."""
    core = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    series = core["version"].rpartition(".")[0]
    for path in sorted(root.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        required = [line for line in project["dependencies"] if line.startswith("cachecore")]

        assert project["name"] == f"cachecore-{path.parent.name}"
        assert any(line.startswith(f"cachecore-kv>={series}") for line in required), (
            f"{path.relative_to(root)} must require cachecore-kv>={series}"
        )
        assert "cachecore" not in {re.split(r"[<>=!~ \[]", line)[0] for line in required}, (
            "the distribution named cachecore is a stranger's"
        )


def test_every_environment_of_a_plugin_is_in_tox(root):
    tox = (root / "tox.ini").read_text(encoding="utf-8")
    environments = re.search(r"^env_list =\n((?:    \S+\n)+)", tox, re.MULTILINE)

    assert environments is not None
    listed = environments.group(1).split()
    plugins = [path.parent.name for path in root.glob("plugins/*/pyproject.toml")]
    assert set(plugins) | {"core", "demo", "lint", "types", "docs", "dists"} <= set(listed)


def test_ruff_is_pinned_to_one_version(root):
    constraints = (root / "constraints.txt").read_text(encoding="utf-8")
    pre_commit = (root / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    required = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["ruff"]["required-version"]

    for tool in ("ruff", "mypy"):
        version = re.search(rf"^{tool}==(\S+)$", constraints, re.MULTILINE)
        assert version is not None
        assert f"rev: v{version.group(1)}\n" in pre_commit
    assert f"ruff{required}\n" in constraints
