"""Tables of the page without columns that tell nothing: what is equal in every row is said once above the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from analysis.base.text import DASH
from analysis.report.html.folding import folded

# Only our templates write tags; autoescape keeps them out of names and logs.
_HEAD = re.compile(r"<thead><tr>(.*?)</tr></thead>", re.DOTALL)
_HEADING = re.compile(r"<th\b[^>]*>.*?</th>\s*", re.DOTALL)
_ROW = re.compile(r"(<tr(?! class=\"series\")[^>]*>)(.*?)(</tr>)", re.DOTALL)
_CELL = re.compile(r"<td\b([^>]*)>(.*?)</td>\s*", re.DOTALL)
_LABEL = re.compile(r'data-label="([^"]*)"')
_SMALL = re.compile(r'\s*<span class="sub">([^<]*)</span>')
_SERIES_SPAN = re.compile(r'(<tr class="series"><th scope="rowgroup" colspan=")\d+(")')
_WITHOUT_DASH = re.compile(rf"^{DASH}\s*(<span)")
_TAG = re.compile(r"<[^>]+>")
_SPACE = re.compile(r"\s+")
BASIS = "from "  # begins what an interval comes from
LONGEST_FIGURE, LONGEST_REMARK = 16, 32  # characters
UNMENTIONED = ("Warnings", "Notes")  # columns whose absence tells that there are none


@dataclass
class _Found:
    """Columns of a table that are said once above it. empty: without a value in any row. same: (heading, HTML) with one
    value in all rows. small: small words that every cell of a column has, by its place. words: columns of text, which
    are wrapped."""

    drop: set[int] = field(default_factory=set)
    empty: list[str] = field(default_factory=list)
    same: list[tuple[str, str]] = field(default_factory=list)
    small: dict[int, list[str]] = field(default_factory=dict)
    words: set[int] = field(default_factory=set)


def table_of(name: str, label: str, where: str, kind: str = "", *, caller: Callable[[], str]) -> Markup:
    """A table that the page sorts and filters, with what is equal in every row above it and its further rows folded.

    name: of its element. label: for screen readers. where: the file that has the same rows. kind: CSS classes.
    """
    html, said = reduced(str(caller()))
    body = folded(name, where, caller=lambda: html)
    return Markup(
        '{}<div class="scroll" role="region" aria-label="{}" tabindex="0">'
        '<table id="table-{}" class="rows {}">\n{}\n</table></div>'
    ).format(said, label, name, kind, body)


def reduced(html: str) -> tuple[str, Markup]:
    """Take out the columns, but the first, that are empty or the same in all rows, and small words that all cells of a
    column share. Returns the rest, and what to say above the table."""
    head = _HEAD.search(html)
    if head is None:
        return html, Markup()
    headings, body = _HEADING.findall(head[1]), html[head.end() :]
    rows = [_CELL.findall(row) for _, row, _ in _ROW.findall(body)]
    if not rows or any(len(row) != len(headings) for row in rows):  # not a table of equal rows
        return html, Markup()
    found = _found(rows)
    if not (found.drop or found.small or found.words):
        return html, Markup()
    kept = "".join(
        heading.replace("<th ", '<th class="words" ', 1) if i in found.words else heading
        for i, heading in enumerate(headings)
        if i not in found.drop
    )
    body = _ROW.sub(lambda row: f"{row[1]}{_kept(row[2], found)}{row[3]}", body)
    body = _SERIES_SPAN.sub(rf"\g<1>{len(headings) - len(found.drop)}\g<2>", body)
    return f"{html[: head.start(1)]}{kept}{html[head.end(1) : head.end()]}{body}", _said(found)


def _found(rows: Sequence[Sequence[tuple[str, str]]]) -> _Found:
    found = _Found()
    for i, (attributes, _) in enumerate(rows[0]):
        inner = {_SPACE.sub(" ", row[i][1]).strip() for row in rows}
        label = _LABEL.search(attributes)
        if label is None:
            continue
        heading = label[1]
        if i and all(_words(html) in ("", DASH) for html in inner):
            found.drop.add(i)
            if heading not in UNMENTIONED:
                found.empty.append(heading)
        elif len(rows) == 1:
            continue
        elif i and len(inner) == 1:
            found.drop.add(i)
            found.same.append((heading, _WITHOUT_DASH.sub(r"\1", inner.pop())))
        else:
            if shared := _shared([_SMALL.findall(html) for html in inner]):
                found.small[i] = shared
                found.same += [(heading, small) for small in shared]
            if "class=" not in attributes and _is_text(inner):
                found.words.add(i)
    return found


def _shared(small: Sequence[Sequence[str]]) -> list[str]:
    """Small words of all cells; those that an interval comes from: of all cells with an interval."""
    everywhere = [text for text in small[0] if all(text in texts for texts in small)]
    with_basis = [texts for texts in small if any(text.startswith(BASIS) for text in texts)]
    bases = {text for texts in with_basis for text in texts if text.startswith(BASIS)}
    return everywhere + [text for text in bases if len(bases) == 1 < len(with_basis) and text not in everywhere]


def _is_text(cells: Collection[str]) -> bool:
    """Return True unless a column has figures with at most a rare remark."""
    if any(len(_words(_SMALL.sub("", html))) > LONGEST_FIGURE for html in cells):
        return True
    remarks = sum(any(len(piece.strip()) > LONGEST_REMARK for piece in _TAG.split(html)) for html in cells)
    return 2 * remarks >= len(cells)


def _words(html: str) -> str:
    return _SPACE.sub(" ", _TAG.sub("", html)).strip()


def _kept(row: str, found: _Found) -> str:
    cells = []
    for i, cell in enumerate(_CELL.finditer(row)):
        if i in found.drop:
            continue
        text = cell[0].replace("<td ", '<td class="words" ', 1) if i in found.words else cell[0]
        for small in found.small.get(i, ()):
            text = re.sub(rf'\s*<span class="sub">{re.escape(small)}</span>', "", text)
        cells.append(text)
    return "\n" + "".join(cells)


def _said(found: _Found) -> Markup:
    """Describe the columns that left the table. The parts are HTML of our templates, escaped there."""
    parts = []
    if found.same:
        same = (f"{heading}: {value}" for heading, value in found.same)
        parts.append(f"In every row: {'; '.join(same)}.")
    if found.empty:
        parts.append(f"Without a value: {'; '.join(found.empty)}.")
    return Markup('<p class="note same">{}</p>\n').format(Markup(" ".join(parts))) if parts else Markup()
