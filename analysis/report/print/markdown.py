"""Writes a document as Markdown (CommonMark with the tables of GitHub and Pandoc)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from analysis.base.text import printable
from analysis.report.print.document import Block, Bullets, Gap, Heading, Line, Paragraph, Picture, Piece, Raised, Table

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$^!&@\"])")
# Some readers turn these into links without any markup.
LINKS = re.compile(r"(://|\bwww\.)", re.IGNORECASE)
# At the start of a line these would begin a list, a heading rule or a quotation.
BEGINNING = re.compile(r"^(\s*)([-+]|[-=]+|\d+[.)])(?=\s|$)")


def markdown_of(blocks: Sequence[Block]) -> str:
    return "\n".join(map(_block, blocks))


def escaped(text: str) -> str:
    """Escape text for Markdown."""
    text = SPECIAL.sub(r"\\\1", printable(text))
    text = LINKS.sub(lambda found: found[0].replace(":", "\\:").replace(".", "\\."), text)
    return BEGINNING.sub(lambda found: found[1] + found[2][:-1] + "\\" + found[2][-1], text)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {escaped(block.text)}\n"
    if isinstance(block, Paragraph):
        return f"> {_line(block.line, strong=True)}\n" if block.warning else f"{_line(block.line)}\n"
    if isinstance(block, Bullets):
        return "\n".join(f"- {_line(line)}" for line in block.lines) + "\n"
    if isinstance(block, Picture):
        return f"![{escaped(block.caption)}](figures/{block.name}.png)\n\n*{escaped(block.caption)}*\n"
    return _table(block)


def _table(table: Table) -> str:
    rules = ["---:" if column.right else ":---" for column in table.columns]
    lines = [f"*{escaped(table.caption)}*", "", _row([escaped(c.heading) for c in table.columns]), _row(rules)]
    for group in table.groups:
        if group.heading:
            lines.append(_row([f"*{escaped(group.heading)}*"] + [""] * (len(table.columns) - 1)))
        for i, row in enumerate(group.rows):
            lines.append(_row([_line(cell, i in group.strong) for cell in row]))
    notes = [f"<sup>{letter}</sup> {escaped(text)}" if letter else escaped(text) for letter, text in table.notes]
    return "\n".join([*lines, "", *(f"{note}  " for note in notes), ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(line: Line, strong: bool = False) -> str:
    return "".join(_piece(piece, strong) for piece in line)


def _piece(piece: Piece, strong: bool) -> str:
    if isinstance(piece, Raised):
        return f"<sup>{piece.letters}</sup>"
    text = escaped(str(piece))
    return f"**{text}**" if text and (strong or isinstance(piece, Gap)) else text
