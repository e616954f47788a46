"""The documentation site, built by `make docs` into build/site. It needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
# Pages are generated from conf/, harness/config/schema.py and harness/schemas; the extensions are next to this file.
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_ext")]

project = "scaling-harness"
html_title = project
extensions = ["myst_parser", "outside_pages", "reference_tables"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_ext"]

# Anchors of headings like those of Git forges, down to ####, so that links with anchors work in both.
myst_heading_anchors = 4
nitpicky = True
# Text indented by four spaces is not Python.
highlight_language = "text"
# `--option` keeps its two hyphens.
smartquotes = False

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
