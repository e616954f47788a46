"""Renders a document as PDF with Typst. Texts are passed as JSON strings, never as markup."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import typst

from analysis.base.text import printable
from analysis.report.print.document import Block, Bullets, Gap, Heading, Line, Paragraph, Picture, Raised, Table

TEMPLATE = Path(__file__).with_name("report.typ")


def pdf_of_blocks(
    title: str, subtitle: str, created: float | None, blocks: Sequence[Block], pictures: Mapping[str, bytes]
) -> bytes:
    """Return the PDF, with Typst's own embedded fonts.

    Args:
        created: unix seconds; the only date in the file, so equal studies give equal files.
        pictures: PDF contents by picture name.
    """
    content = {
        "title": _words(title),
        "subtitle": _words(subtitle),
        "created": _date(created),
        "blocks": _blocks(blocks),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.typ").write_bytes(TEMPLATE.read_bytes())
        (folder / "data.json").write_text(json.dumps(content), encoding="utf-8")
        for picture, pdf in pictures.items():
            (folder / f"{picture}.pdf").write_bytes(pdf)
        return typst.compile(
            str(folder / "main.typ"),
            root=name,
            ignore_system_fonts=True,
            format="pdf",
        )


def _words(text: str) -> str:
    """Use no-break spaces between numbers and '%'."""
    return printable(text).replace(" %", "\u00a0%")


def _date(created: float | None) -> dict[str, int] | None:
    """Return arguments for Typst's `datetime`; None if the time is out of range."""
    try:
        at = datetime.fromtimestamp(created, UTC)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        return None
    return {name: getattr(at, name) for name in ("year", "month", "day", "hour", "minute", "second")}


def _blocks(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Return Typst's data for the blocks; consecutive pictures are placed side by side."""
    found: list[dict[str, Any]] = []
    for pictures, group in groupby(blocks, key=lambda block: isinstance(block, Picture)):
        if pictures:
            found.append({"kind": "pictures", "pictures": [_block(block) for block in group]})
        else:
            found += map(_block, group)
    return found


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Heading):
        return {"kind": "heading", "level": block.level, "text": _words(block.text)}
    if isinstance(block, Paragraph):
        return {"kind": "warning" if block.warning else "paragraph", "line": _line(block.line)}
    if isinstance(block, Bullets):
        return {"kind": "answers" if block.answers else "bullets", "lines": [_line(line) for line in block.lines]}
    if isinstance(block, Picture):
        return {"kind": "picture", "file": f"{block.name}.pdf", "caption": _words(block.caption)}
    return _table(block)


def _table(table: Table) -> dict[str, Any]:
    return {
        "kind": "table",
        "caption": _words(table.caption),
        "columns": [dataclasses.asdict(column) for column in table.columns],
        "groups": [
            {
                "heading": _words(group.heading),
                "rows": [[_line(cell) for cell in row] for row in group.rows],
                "strong": sorted(group.strong),
            }
            for group in table.groups
        ],
        "notes": [[letter, _words(text)] for letter, text in table.notes],
    }


def _line(line: Line) -> list[dict[str, str]]:
    found = []
    for piece in line:
        if isinstance(piece, Gap):
            found.append({"gap": _words(str(piece))})
        elif isinstance(piece, Raised):
            found.append({"raised": piece.letters})
        else:
            found.append({"text": _words(piece)})
    return found or [{"text": ""}]
