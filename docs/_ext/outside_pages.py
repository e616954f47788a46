"""Pages of the site whose source is outside docs/, and links to them, which work both on a Git forge and in the site.

On a forge `[the figures](../benchmarks/RESULTS.md)` leads to the file, but Sphinx sees only docs/. So each such file
has a page in docs/project/, whose text is replaced by the file's, and links to the file lead to that page. Links to
files that are not pages, such as a schema, become the file's path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent
PROJECT = DOCS.parent
# File of the project -> the page that shows it.
SHOWN = {
    "CONTRIBUTING.md": "project/contributing",
    "CHANGELOG.md": "project/changelog",
    "benchmarks/RESULTS.md": "project/results",
}
# The README corresponds to the site's first page.
PAGES = {**SHOWN, "README.md": "index"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Any, docname: str, source: list[str]) -> None:
    page = DOCS / f"{docname}.md"
    origin = page
    for file, shown in SHOWN.items():
        if docname == shown:
            origin = PROJECT / file
            source[0] = origin.read_text(encoding="utf-8")
            app.env.note_dependency(str(origin))
    source[0] = rewritten(source[0], origin, page)


def rewritten(text: str, origin: Path, page: Path) -> str:
    """Return the text of `origin` with its links rewritten for the page: relative, and inside docs/."""

    def link(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = (origin.parent / target).resolve()
        if path.is_dir() and (path / "README.md").exists():
            path = path / "README.md"
        inside = PAGES.get(os.path.relpath(path, PROJECT))
        if inside is not None:
            path = DOCS / f"{inside}.md"
        elif not path.is_relative_to(DOCS):
            return f"{words} (`{os.path.relpath(path, PROJECT)}`)" if path.exists() else match[0]
        return f"[{words}]({os.path.relpath(path, page.parent)}{anchor})"

    return LINK.sub(link, text)
