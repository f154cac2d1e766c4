"""What holds for the pages: links that show, decisions that are listed, an API page that has every name."""

from __future__ import annotations

import ast
import re

import pytest

import cachecore

LINK = re.compile(r"\[(?P<text>[^\]\n]*)\]\((?P<target>[^)\s]+)\)")
UNPUBLISHED = re.compile(r"pypi\.org/project/cachecore|pip install (?:--\S+ )*\"?cachecore-")


def pages(root):
    found = [
        *root.glob("*.md"),
        *root.glob("docs/**/*.md"),
        *root.glob("plugins/*/*.md"),
        *root.glob("examples/**/*.md"),
    ]
    assert len(found) > 30
    return sorted(found)


def test_every_link_has_a_text(root):
    bare = [
        f"{page.relative_to(root)}: {match[0]}"
        for page in pages(root)
        for match in LINK.finditer(page.read_text(encoding="utf-8"))
        if not match["text"].strip()
    ]

    assert not bare, f"a link without a text shows as nothing on a page that Sphinx does not make: {bare}"


def test_every_link_to_a_file_leads_there(root):
    lost = [
        f"{page.relative_to(root)}: {match['target']}"
        for page in pages(root)
        for match in LINK.finditer(
            re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
        if not match["target"].startswith(("http", "#"))
        and not (page.parent / match["target"].partition("#")[0]).exists()
    ]

    assert not lost, lost


def test_every_decision_is_listed_with_its_title(root):
    index = (root / "docs" / "adr" / "index.md").read_text(encoding="utf-8")
    decisions = sorted((root / "docs" / "adr").glob("0*.md"))

    assert len(decisions) >= 11
    for page in decisions:
        number, _, title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(": ")
        assert f"\n{int(number)}. [{title}]({page.name})\n" in index


def test_the_api_page_has_every_public_name(root):
    page = (root / "docs" / "api.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\.\. (?:auto\w+|py:data):: cachecore\.(\w+)$", page, re.MULTILINE)

    assert sorted(set(documented) & set(cachecore.__all__)) == sorted(cachecore.__all__)
    assert len(documented) == len(set(documented)), "a name stands on the page twice"


@pytest.mark.parametrize(
    "plugin", ["ascend-dlinfer", "cpu", "cuda-triton", "npu-sim", "ray", "torch-default", "transformers"]
)
def test_the_api_page_has_every_name_of_a_plugin(root, plugin):
    package = f"cachecore_{plugin.replace('-', '_')}"
    tree = ast.parse((root / "plugins" / plugin / "src" / package / "__init__.py").read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    page = (root / "docs" / "api.md").read_text(encoding="utf-8")
    row = next((line for line in page.splitlines() if line.startswith(f"| `{package}` |")), "")

    missing = [name for name in names if f"`{name}`" not in row]
    assert not missing, f"docs/api.md: the row of {package} lacks {missing}"


def test_a_readme_does_not_install_what_is_not_published(root):
    readmes = [root / "README.md", root / "examples" / "README.md", *root.glob("plugins/*/README.md")]

    assert not [page.parent.name for page in readmes if UNPUBLISHED.search(page.read_text(encoding="utf-8"))]


def test_every_python_block_is_one_that_the_tests_run(root):
    """``tests/test_docs_code.py`` leaves others out; one page has captions, and ``tests/vendor`` runs it."""
    elsewhere = root / "docs" / "writing-a-plugin.md"
    odd = [
        f"{page.relative_to(root)}: {line}"
        for page in {root / "README.md", *root.glob("docs/**/*.md")} - {elsewhere}
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(?:```+|~~~+|:::+)\s*\{?(?:py|code)", line) and not re.fullmatch(r"```python(?: torch)?", line)
    ]

    assert not odd, odd
