"""Sphinx configuration; `tox run -e docs` builds with warnings as errors."""

from importlib.metadata import version as version_of

from sphinx.ext.napoleon import Config, NumpyDocstring

project = "cachecore"
author = "The cachecore authors"
copyright = "2026, the cachecore authors"  # Sphinx reads this name
release = version = version_of("cachecore-kv")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "adr/template.md"]
nitpicky = True
# Only names of cachecore are looked up: the build has no network for Python's, nor an array library.
# Of those, type variables and what is named only in a signature have no entry on the API page.
nitpick_ignore_regex = [
    ("py:.*", r"(?!cachecore\.).*"),
    ("py:class", r"cachecore\.\w+\.(?:A|BlockIds|EngineGroup|LocalRank|SpecViews)"),
    ("py:class", r"cachecore\.testing\.(?:samples|arrays)\.\w+"),
]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"cachecore {release}"


def setup(app):
    """Sections of docstrings become fields."""
    app.connect("autodoc-process-docstring", read_sections)


def read_sections(app, what, name, obj, options, lines):
    """What the extension napoleon does, which would take an attribute's text up to a colon for its type."""
    if what not in ("attribute", "data", "property"):
        lines[:] = NumpyDocstring(lines, Config(), app, what, name, obj, options).lines()
