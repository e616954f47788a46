"""A document as .docx: headings, tables and pictures of Word's own, so that it can be edited there."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import docx
from docx.enum.text import WD_ALIGN_PARAGRAPH, WD_COLOR_INDEX
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from docx.shared import Pt, RGBColor

from analysis.base.text import printable
from analysis.report.print.document import Block, Bullets, Gap, Heading, Line, Paragraph, Picture, Raised, Table

EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold: equal documents are equal files
SMALL = Pt(8.5)


def docx_of(title: str, created: float | None, blocks: Sequence[Block], pictures: Mapping[str, bytes]) -> bytes:
    """created: unix seconds, the only date in it. pictures: PNGs by the names that the blocks give them."""
    document = docx.Document()
    _properties(document, title, created)
    style: Any = document.styles["Normal"]
    style.font.name, style.font.size = "Calibri", Pt(10.5)
    for block in blocks:
        _add(document, block, pictures)
    return _without_times(document)


def _properties(document: Any, title: str, created: float | None) -> None:
    properties = document.core_properties
    properties.title, properties.author, properties.comments = printable(title), "", ""
    try:
        at = datetime.fromtimestamp(created, UTC).replace(tzinfo=None)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        at = datetime(*EPOCH)
    properties.created = properties.modified = at


def _add(document: Any, block: Block, pictures: Mapping[str, bytes]) -> None:
    if isinstance(block, Heading):
        document.add_heading(printable(block.text), block.level)
    elif isinstance(block, Paragraph):
        paragraph = document.add_paragraph(style="Intense Quote" if block.warning else None)
        _fill(paragraph, block.line, strong=block.warning)
    elif isinstance(block, Bullets):
        for line in block.lines:
            _fill(document.add_paragraph(style="List Bullet"), line)
    elif isinstance(block, Picture):
        section = document.sections[0]
        width = section.page_width - section.left_margin - section.right_margin
        document.add_picture(io.BytesIO(pictures[block.name]), width=width if block.wide else width // 2)
        _alternative(document, block.caption)
        document.add_paragraph(printable(block.caption), style="Caption")
    else:
        _table(document, block)


def _alternative(document: Any, text: str) -> None:
    """The words of a picture for screen readers."""
    document.inline_shapes[-1]._inline.docPr.set("descr", printable(text))


def _table(document: Any, table: Table) -> None:
    document.add_paragraph(printable(table.caption), style="Caption").paragraph_format.keep_with_next = True
    rows = sum(len(group.rows) + bool(group.heading) for group in table.groups)
    grid = document.add_table(rows=1 + rows, cols=len(table.columns), style="Light Shading")
    cells = [list(row.cells) for row in grid.rows]
    for cell, column in zip(cells[0], table.columns, strict=True):
        _cell(cell, (column.heading,), column.right, strong=True)
    header = OxmlElement("w:tblHeader")  # repeated on every page
    header.set(qn("w:val"), "true")
    grid.rows[0]._tr.get_or_add_trPr().append(header)
    at = 1
    for group in table.groups:
        if group.heading:
            _cell(cells[at][0].merge(cells[at][-1]), (group.heading,), right=False)
            at += 1
        for i, row in enumerate(group.rows):
            for cell, line, column in zip(cells[at], row, table.columns, strict=True):
                _cell(cell, line, column.right, strong=i in group.strong)
            at += 1
    for letter, text in table.notes:
        paragraph = document.add_paragraph()
        paragraph.paragraph_format.space_after = Pt(0)
        _fill(paragraph, ((Raised(letter),) if letter else ()) + (text,), size=Pt(8))
    document.add_paragraph()


def _cell(cell: Any, line: Line, right: bool, strong: bool = False) -> None:
    paragraph = cell.paragraphs[0]
    paragraph.alignment = WD_ALIGN_PARAGRAPH.RIGHT if right else WD_ALIGN_PARAGRAPH.LEFT
    _fill(paragraph, line, strong=strong, size=SMALL)
    for run in paragraph.runs:
        run.font.bold = strong  # the style has bold first columns of its own


def _fill(paragraph: Any, line: Line, strong: bool = False, size: Any = None) -> None:
    for piece in line:
        run = paragraph.add_run(printable(piece.letters if isinstance(piece, Raised) else str(piece)))
        run.bold = True if strong or isinstance(piece, Gap) else None
        if size is not None:
            run.font.size = size
        if isinstance(piece, Raised):
            run.font.superscript = True
        elif isinstance(piece, Gap):
            run.font.highlight_color = WD_COLOR_INDEX.YELLOW
            run.font.color.rgb = RGBColor(0, 0, 0)


def _without_times(document: Any) -> bytes:
    """The archive with one time for all its files."""
    written, buffer = io.BytesIO(), io.BytesIO()
    document.save(written)
    with zipfile.ZipFile(written) as source, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(zipfile.ZipInfo(info.filename, EPOCH), source.read(info), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
