"""The documentation site, built by `make docs` into build/site. It needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
# Pages are made of conf/, harness/config/schema.py and harness/schemas; the extensions lie beside this file.
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_ext")]

project = "scaling-harness"
html_title = project
extensions = ["myst_parser", "outside_pages", "reference_tables"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["_ext"]

# Anchors of headings as a forge makes them, down to ####, so that a link with an anchor means the same in both.
myst_heading_anchors = 4
nitpicky = True
# Text set off by four spaces is no Python.
highlight_language = "text"
# `--option` keeps its two hyphens.
smartquotes = False

html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
