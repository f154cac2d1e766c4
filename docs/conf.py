"""Sphinx configuration; `tox run -e docs` builds with warnings as errors."""

from importlib.metadata import version as version_of

project = "cachecore"
author = "The cachecore authors"
copyright = "2026, the cachecore authors"  # Sphinx reads this name
release = version = version_of("cachecore-kv")

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "adr/template.md"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"cachecore {release}"
