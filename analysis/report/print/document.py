"""Format-independent documents; the other modules of this package write them as LaTeX, Typst or Markdown.

Texts hold no markup, and each writer escapes them, because names come from other programs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase


@dataclass(frozen=True)
class Gap:
    """Information only the user has; shown as `[FILL IN: …]` so that nobody overlooks it."""

    what: str

    def __str__(self) -> str:
        return f"[FILL IN: {self.what}]"


@dataclass(frozen=True)
class Raised:
    """Superscript letters that refer to footnotes."""

    letters: str


Piece = str | Gap | Raised
Line = Sequence[Piece]  # a paragraph or a table cell


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 1


@dataclass(frozen=True)
class Paragraph:
    """warning: highlighted."""

    line: Line
    warning: bool = False


@dataclass(frozen=True)
class Bullets:
    """answers: the main results, set larger where the format allows."""

    lines: Sequence[Line]
    answers: bool = False


@dataclass(frozen=True)
class Header:
    heading: str
    right: bool = True  # alignment: numbers right, names left


@dataclass(frozen=True)
class Group:
    """Rows under a heading, or none (""). strong: indices of the rows in bold."""

    heading: str
    rows: Sequence[Sequence[Line]]
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Table:
    """name: letters and hyphens, for labels. notes: (letter, footnote); letter "" for footnotes without a reference."""

    name: str
    caption: str
    columns: Sequence[Header]
    groups: Sequence[Group]
    notes: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Picture:
    """name: file in figures/, without suffix. wide: two columns wide."""

    name: str
    caption: str
    wide: bool = False


Block = Heading | Paragraph | Bullets | Table | Picture


@dataclass
class Footnotes:
    """Assigns letters to footnotes in order of first use."""

    texts: list[str] = field(default_factory=list)

    def raised(self, *texts: str | None) -> tuple[Raised, ...]:
        """Return a superscript with the letters of these texts; empty if there are none."""
        said = [text for text in dict.fromkeys(texts) if text]
        self.texts += [text for text in said if text not in self.texts]
        return (Raised(",".join(_letter(self.texts.index(text)) for text in said)),) if said else ()

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(_letter(i), text) for i, text in enumerate(self.texts)]


def _letter(i: int) -> str:
    return (_letter(i // 26 - 1) if i >= 26 else "") + ascii_lowercase[i % 26]


def pages_of(table: Table, most: int) -> Iterator[Table]:
    """Split a table into parts of at most `most` rows, each with the footnotes it needs. The first part keeps the
    name."""
    parts: list[list[Group]] = [[]]
    room = most
    for group in table.groups:
        rows, first = list(group.rows), 0
        while first < len(rows):
            if room == 0:
                parts.append([])
                room = most
            taken = rows[first : first + room]
            strong = frozenset(i - first for i in group.strong if first <= i < first + len(taken))
            parts[-1].append(Group(group.heading, taken, strong))
            first += len(taken)
            room -= len(taken)
    for number, groups in enumerate(parts, start=1):
        used = {
            letter
            for group in groups
            for row in group.rows
            for cell in row
            for piece in cell
            if isinstance(piece, Raised)
            for letter in piece.letters.split(",")
        }
        yield dataclasses.replace(
            table,
            name=table.name if number == 1 else f"{table.name}-{number}",
            caption=table.caption if number == 1 else f"{table.caption} (continued)",
            groups=groups,
            notes=[(letter, text) for letter, text in table.notes if not letter or letter in used],
        )
